"""The long convolution: definition, both implementations, and the laws of every op with a state."""

import functools
from typing import NamedTuple

import jax
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops.long_conv import fft_size
from tests.arrays import array, blank
from tests.marks import release_but, slow_but
from tests.ops import oracles
from tests.ops.contract import Contract
from tests.ops.declared import PREFIX

conv = functools.partial(jax.jit, static_argnames=("return_state", "implementation"))(ops.long_conv)

LENGTH = 37


class Case(NamedTuple):
    sizes: tuple[int, int, int, int]  # B, N, E, T

    @property
    def slots(self) -> int:
        """Few taps need a short ring, in which a text of any length fits."""
        return min(max(self.sizes[3] - 1, 1), PREFIX + self.sizes[1])


# Fewer and more taps than there are tokens, and one.
CASES = [Case((2, LENGTH, 2, 50)), Case((2, LENGTH, 2, 9))]
ONE_TAP = Case((2, LENGTH, 2, 1))


class TestLongConv(Contract):
    """Of packed documents, by a transform for each."""

    cases = slow_but(CASES[:1], CASES)
    tokens = ("x",)
    zero_padding = False
    test_split = test_one_token = test_bfloat16 = test_without_a_placement = None

    def arrays(self, rng, case):
        batch, length, channels, taps = case.sizes
        arrays = {
            "x": rng.normal(size=(batch, length, channels)),
            "kernel": rng.normal(size=(taps, channels)),
            "skip": rng.normal(size=channels),
        }
        return arrays | {name: rng.normal(size=(batch, case.slots, channels)) for name in self.state}

    def call(self, arrays, at, case, implementation):
        before = None
        if self.state:
            before = at.after(lambda stream: ops.LongConvState(arrays["inputs"], stream))
        y = ops.long_conv(
            arrays["x"],
            arrays["kernel"],
            skip=arrays["skip"],
            initial_state=before,
            return_state=before is not None,
            **at.context,
            implementation=implementation,
        )
        return (y[0], {"inputs": y[1].inputs}, y[1].stream) if before is not None else (y, {}, None)

    def oracle(self, arrays, at, case):
        """The short convolution's, whose taps go backwards, of each row's whole text."""
        x, state = arrays["x"], {name: arrays[name].copy() for name in self.state}
        y = np.zeros(x.shape)
        for row, count in enumerate(at.counts):
            past = at.length[row] if self.state else 0
            text, index = x[row, :count], np.arange(past)
            if past:  # what has left the ring is out of reach of all taps
                text = np.concatenate([arrays["inputs"][row, index % case.slots], text])
            ids = np.concatenate([np.where(index < at.start[row], -1, at.segment[row]), at.segment_ids[row]])
            whole = oracles.short_conv(text[None], arrays["kernel"][::-1], segment_ids=ids[None, : len(text)])
            y[row, :count] = whole[0, past:] + arrays["skip"] * x[row, :count]
            for t in range(count if self.state else 0):
                state["inputs"][row, (past + t) % case.slots] = x[row, t]
        return y, state


class TestContinued(TestLongConv):
    """In blocks after a state, a ring of the last inputs."""

    cases = slow_but(CASES[1:], [*CASES[::-1], ONE_TAP])
    state = ("inputs",)
    forgets = False
    test_split, test_one_token = Contract.test_split, Contract.test_one_token

    def empty(self, arrays, case):
        """Slots without an input may hold anything: nobody sees it."""
        return {}


class TestOneTransform(TestLongConv):
    """Of a row as one document: causal but for rounding."""

    cases = release_but(CASES[:1], [CASES[0], ONE_TAP])
    segments = False
    test_bfloat16, test_without_a_placement = Contract.test_bfloat16, Contract.test_without_a_placement
    test_the_reference = test_in_float64 = test_segments = test_causality = None


def numbers(seed, rows, length, taps):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((rows, length, 2), (taps, 2), (2,))]


@pytest.mark.release
def test_packed_rows_are_causal_and_separate_to_the_last_bit():
    """Their transforms never contain a later token, or one of another segment: not even NaN passes."""
    x, kernel, _ = numbers(1, 1, LENGTH, LENGTH)
    ids = (np.arange(LENGTH) >= 21)[None].astype(np.int32)
    clean = conv(x, kernel, segment_ids=ids)
    spoiled = x.copy()
    spoiled[:, 20] = np.nan
    y = conv(spoiled, kernel, segment_ids=ids)
    np.testing.assert_array_equal(np.delete(y, 20, axis=1), np.delete(clean, 20, axis=1))


def test_a_text_longer_than_its_state():
    x, kernel, _ = numbers(2, 2, 6, 50)
    state = blank(ops.init_long_conv_state, 2, 8, 2)
    mask = np.arange(6) < np.array([[6], [1]])
    _, state = conv(x, kernel, initial_state=state, return_state=True, mask=mask)
    with pytest.raises(ValueError, match="length = 12: expected at most max_length = 8 tokens"):
        ops.long_conv(array(x), array(kernel), initial_state=state)
    y, _ = conv(x, kernel, initial_state=state, return_state=True)
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()


def test_transform_sizes():
    for size, expected in [(1, 1), (2, 2), (7, 8), (17, 18), (33, 36), (1000, 1024), (1200, 1280)]:
        assert fft_size(size) == expected
