"""The short convolution: definition, and the laws of every op with a state."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import pallas_kernels
from based_jax import ops
from tests.arrays import array, blank, ones, stream_at
from tests.marks import slow_but
from tests.ops import oracles
from tests.ops.contract import Contract
from tests.tolerances import FLOAT16, FLOAT32, assert_close

conv = functools.partial(jax.jit, static_argnames="return_state")(ops.short_conv)


class Case(NamedTuple):
    sizes: tuple[int, int, int, int]  # B, N, E, T
    bias: bool = True


# Fewer tokens than taps, one tap, one channel, odd lengths, one token.
CASES = [
    Case((2, 9, 4, 3)),
    Case((2, 2, 3, 4)),
    Case((3, 7, 2, 3), bias=False),
    Case((1, 5, 1, 1)),
    Case((2, 1, 2, 3)),
    Case((1, 1, 1, 1)),
]


class TestShortConv(Contract):
    cases = slow_but(CASES[:2], CASES, core=CASES[:1])
    bare = CASES[1:3]
    tokens, state = ("x",), ("inputs",)
    implementations = ("xla",)
    low_state = "bfloat16"
    zero_padding = forgets = False
    test_the_reference = None

    def arrays(self, rng, case):
        batch, length, channels, taps = case.sizes
        arrays = {
            "x": rng.normal(size=(batch, length, channels)),
            "kernel": rng.normal(size=(taps, channels)),
            "inputs": rng.normal(size=(batch, taps - 1, channels)),
        }
        return arrays | ({"bias": rng.normal(size=channels)} if case.bias else {})

    def call(self, arrays, at, case, implementation):
        y, state = ops.short_conv(
            arrays["x"],
            arrays["kernel"],
            arrays.get("bias"),
            initial_state=at.after(lambda stream: ops.ShortConvState(arrays["inputs"], stream)),
            return_state=True,
            **at.context,
        )
        return y, {"inputs": state.inputs}, state.stream

    def oracle(self, arrays, at, case):
        """The sum over taps of each row's text, of which the state is the end."""
        taps = case.sizes[3]
        y, inputs = np.zeros(arrays["x"].shape), arrays["inputs"].copy()
        for row, count in enumerate(at.counts):
            kept = min(at.length[row] - at.start[row], taps - 1)
            before = np.where(np.arange(taps - 1) < taps - 1 - kept, -1, at.segment[row])
            ids = np.concatenate([before, at.segment_ids[row]])
            text = np.concatenate([inputs[row], arrays["x"][row, :count]])[None]
            whole = oracles.short_conv(
                text, arrays["kernel"], arrays.get("bias"), segment_ids=ids[None, : text.shape[1]]
            )
            y[row, :count] = whole[0, taps - 1 :]
            inputs[row] = text[0, count:]
        return y, {"inputs": inputs}

    def test_reach(self, case):
        """Token t reaches the outputs t ... t + T - 1 and no others."""

        def law(drawn, t):
            arrays, at, weights = drawn[:3]
            here = (np.arange(case.sizes[1]) == t)[:, None]
            before, after = (
                self.run(arrays | {"x": x}, self.alone(at), weights, case, "xla", "float32").y
                for x in (arrays["x"], arrays["x"] + here)
            )
            reached = list(range(t, min(t + case.sizes[3], case.sizes[1])))
            assert np.flatnonzero((before != after).all((0, 2))).tolist() == reached
            assert np.flatnonzero((before != after).any((0, 2))).tolist() == reached

        self.law(case, law, st.integers(0, case.sizes[1] - 1), full=True)


def test_float16():
    rng = np.random.default_rng(0)
    x, kernel, bias = (rng.normal(size=size).astype(np.float16) for size in ((2, 9, 4), (3, 4), 4))
    y, state = conv(x, kernel, bias, return_state=True)
    assert y.dtype == state.inputs.dtype == np.float16
    assert_close(y, oracles.short_conv(*(np.asarray(a, np.float64) for a in (x, kernel, bias))), FLOAT16)


def test_bfloat16_sums_in_float32():
    """Many taps, all positive: sums in bfloat16 would be off by several of its roundings, 2^-8 each."""
    generator = np.random.default_rng(0)
    x, kernel = (generator.uniform(1, 2, size).astype(jnp.bfloat16) for size in ((1, 65, 8), (64, 8)))
    expected = oracles.short_conv(*(np.asarray(a, np.float64) for a in (x, kernel)))
    assert_close(conv(x, kernel), expected, 2**-8)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_a_step_is_the_convolution_of_one_token(implementation, gated):
    """With its activation and gate; rows at different lengths, one of which has just begun a segment."""
    rng = np.random.default_rng(3)
    inner, kernel, bias = (array(rng.normal(size=size), "float32") for size in ((3, 2, 5), (4, 5), (5,)))
    stream = stream_at(*(np.array(x, np.int32) for x in ([0, 2, 9], [0, 0, 8], [0, 0, 1])))
    state = ops.ShortConvState(array(rng.normal(size=(3, 3, 5)), "float32"), stream)
    options = {"gated": gated, "implementation": implementation}
    with pallas_kernels.interpreted():
        y, after = jax.jit(functools.partial(ops.short_conv_step, **options))(inner, kernel, state, bias)
    wanted, moved = conv(inner[:, :1], kernel, bias, initial_state=state, return_state=True)
    total = np.asarray(wanted[:, 0], np.float64)
    expected = total / (1 + np.exp(-total)) * (np.asarray(inner[:, 1]) if gated else 1)
    assert_close(y, expected, FLOAT32)
    chex.assert_trees_all_equal(after, moved)


def test_a_step_may_have_one_tap():
    inner = np.random.default_rng(4).normal(size=(2, 2, 5)).astype(np.float32)
    y, _ = ops.short_conv_step(inner, np.ones((1, 5), np.float32), ops.init_short_conv_state(2, 5, 1))
    assert_close(y, inner[:, 0] / (1 + np.exp(-inner[:, 0])), FLOAT32)


@pytest.mark.usefixtures("unchecked")
def test_a_step_takes_two_halves():
    state = blank(ops.init_short_conv_state, 2, 5, 3)
    with pytest.raises(ValueError, match="inner"):
        ops.short_conv_step(ones((2, 3, 5)), ones((3, 5)), state)
    with pytest.raises(ValueError, match="implementation = 'pallas': runs on GPUs"):
        ops.short_conv_step(ones((2, 2, 5)), ones((3, 5)), state, implementation="pallas")


def test_a_shift_is_the_convolution_with_the_taps_one_and_zero():
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    ids = np.repeat([[0, 1], [2, 2]], [2, 3], axis=1)
    expected = oracles.short_conv(x, np.array([[1.0] * 3, [0.0] * 3]), segment_ids=ids)
    assert_close(ops.token_shift(x, segment_ids=ids), expected, 0)
