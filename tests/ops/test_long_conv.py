"""The long convolution: definition, both implementations, and the laws of every op with a state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax import ops
from tests.arrays import array
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close

conv = functools.partial(jax.jit, static_argnames=("return_state", "implementation"))(ops.long_conv)

LENGTH = 37
CASES = [(1, False), (9, True), (50, False), (50, True)]
"""taps (one, fewer and more than there are tokens), packed"""


def numbers(seed, rows, length, taps, dtype=np.float64):
    rng = np.random.default_rng(seed)
    shapes = (rows, length, 2), (taps, 2), (2,)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def defined(x, kernel, skip, ids=None, counts=None):
    """The short convolution's oracle, whose taps go backwards."""
    y = oracles.short_conv(x, kernel[::-1], segment_ids=ids, counts=counts)
    real = np.ones(x.shape[:2], bool) if counts is None else draw.mask(counts, x.shape[1])
    return y + np.where(real[..., None], skip * x, 0)


@pytest.mark.parametrize(("taps", "packed"), CASES)
def test_values_and_gradients(taps, packed):
    """Reference against the definition, FFT against the reference, in float64 and float32."""

    @functools.partial(jax.jit, static_argnames="implementation")
    def everything(x, kernel, skip, ids, mask, weights, implementation):
        def loss(x, kernel, skip):
            y = ops.long_conv(x, kernel, skip=skip, segment_ids=ids, mask=mask, implementation=implementation)
            return (y * weights).sum(), y

        (_, y), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, kernel, skip)
        return jnp.where(mask[..., None], y, 0), gradients

    @given(draw.seeds, draw.segment_ids(2, LENGTH), draw.counts(2, LENGTH))
    @settings(max_examples=8)
    def law(seed, ids, counts):
        x, kernel, skip = numbers(seed, 2, LENGTH, taps)
        mask = draw.mask(counts, LENGTH)
        ids = ids if packed else None
        weights = np.random.default_rng(0).normal(size=x.shape) * mask[..., None]
        with jax.enable_x64(True):
            exact = everything(x, kernel, skip, ids, mask, weights, "reference")
            assert_close(exact[0], defined(x, kernel, skip, ids, counts), FLOAT64)
            assert_close(everything(x, kernel, skip, ids, mask, weights, "xla"), exact, FLOAT64)
        low = (a.astype(np.float32) for a in (x, kernel, skip))
        y, gradients = everything(*low, ids, mask, weights.astype(np.float32), "xla")
        assert_close(y, exact[0], FLOAT32)
        assert_close(gradients, exact[1], FLOAT32_GRADIENT)

    law()


@pytest.mark.parametrize(("taps", "packed"), CASES)
def test_split_law(taps, packed):
    """Pieces equal one call. Few taps need a short ring, in which a text of any length fits."""
    slots = min(max(taps - 1, 1), LENGTH)

    @given(draw.seeds, draw.segment_ids(2, LENGTH))
    @settings(max_examples=6)
    def law(seed, ids):
        x, kernel, skip = numbers(seed, 2, LENGTH, taps, np.float32)
        ids = ids if packed else None
        whole = conv(x, kernel, skip=skip, segment_ids=ids)
        state, outputs, begin = ops.init_long_conv_state(2, slots, 2), [], 0
        for size in (1, 17, 1, 1, 17):
            piece = slice(begin, begin + size)
            part = None if ids is None else ids[:, piece]
            y, state = conv(
                x[:, piece], kernel, skip=skip, initial_state=state, return_state=True, segment_ids=part
            )
            outputs.append(y)
            begin += size
        assert_close(np.concatenate(outputs, axis=1), whole, FLOAT32)

    law()


def test_an_unnamed_continuation_stays_in_its_segment():
    """Inputs of earlier segments stay hidden when no ids are given any more."""
    x, kernel, skip = numbers(0, 2, LENGTH, 50, np.float32)
    ids = (np.arange(LENGTH) >= 5)[None].repeat(2, axis=0).astype(np.int32)
    whole = conv(x, kernel, skip=skip, segment_ids=ids)
    state = ops.init_long_conv_state(2, LENGTH, 2)
    _, state = conv(
        x[:, :18], kernel, skip=skip, initial_state=state, return_state=True, segment_ids=ids[:, :18]
    )
    for implementation in ("xla", "reference"):
        y, after = conv(
            x[:, 18:19], kernel, skip=skip, initial_state=state, return_state=True,
            implementation=implementation,
        )  # fmt: skip
        assert_close(y, whole[:, 18:19], FLOAT32)
        y, _ = conv(
            x[:, 19:], kernel, skip=skip, initial_state=after, return_state=True,
            implementation=implementation,
        )  # fmt: skip
        assert_close(y, whole[:, 19:], FLOAT32)


def test_padding_law():
    """Two padded calls, rows without any token included, equal one call on each row's real tokens."""

    @given(draw.seeds, draw.counts(3, 5), draw.counts(3, 5))
    @settings(max_examples=10)
    def law(seed, first, second):
        x, kernel, skip = numbers(seed, 3, 10, 12, np.float32)
        garbage = x + 1e6 * ~np.concatenate([draw.mask(first, 5), draw.mask(second, 5)], axis=1)[..., None]
        garbage, state = garbage.astype(np.float32), ops.init_long_conv_state(3, 10, 2)
        y1, state = conv(
            garbage[:, :5], kernel, skip=skip, initial_state=state, return_state=True,
            mask=draw.mask(first, 5),
        )  # fmt: skip
        y2, _ = conv(
            garbage[:, 5:], kernel, skip=skip, initial_state=state, return_state=True,
            mask=draw.mask(second, 5),
        )  # fmt: skip
        for row, (a, b) in enumerate(zip(first, second, strict=True)):
            text = np.concatenate([x[row, :a], x[row, 5 : 5 + b]])[None]
            y = np.concatenate([y1[row, :a], y2[row, :b]])
            assert_close(y, defined(text, kernel, skip)[0], FLOAT32)

    law()


def test_tap_0_is_the_present_and_nothing_wraps_around():
    """More taps than tokens, and a transform in which the end would meet the beginning."""
    kernel = jnp.arange(1.0, 9.0)[:, None]
    y = ops.long_conv(jnp.zeros((1, 5, 1)).at[0, 3].set(1), kernel)
    np.testing.assert_allclose(y[0, :, 0], [0, 0, 0, 1, 2], atol=1e-6)


def test_packed_rows_are_causal_and_separate_to_the_last_bit():
    """Their transforms never contain a later token, or one of another segment: not even NaN passes."""
    x, kernel, _ = numbers(1, 1, LENGTH, LENGTH, np.float32)
    ids = (np.arange(LENGTH) >= 21)[None].astype(np.int32)
    clean = conv(x, kernel, segment_ids=ids)
    spoiled = x.copy()
    spoiled[:, 20] = np.nan
    y = conv(spoiled, kernel, segment_ids=ids)
    np.testing.assert_array_equal(np.delete(y, 20, axis=1), np.delete(clean, 20, axis=1))


def test_a_text_longer_than_its_state():
    x, kernel, _ = numbers(2, 2, 6, 50, np.float32)
    state = ops.init_long_conv_state(2, 8, 2)
    mask = np.arange(6) < np.array([[6], [1]])
    _, state = conv(x, kernel, initial_state=state, return_state=True, mask=mask)
    with pytest.raises(ValueError, match="length = 12: expected at most max_length = 8 tokens"):
        ops.long_conv(array(x), array(kernel), initial_state=state)
    y, _ = conv(x, kernel, initial_state=state, return_state=True)
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()


def test_low_precision():
    """The transform runs in float32."""
    x, kernel, skip = (array(a, jnp.bfloat16) for a in numbers(0, 2, LENGTH, 9))
    y = conv(x, kernel, skip=skip)
    assert y.dtype == jnp.bfloat16
    assert_close(y, defined(*(np.asarray(a, np.float64) for a in (x, kernel, skip))), BFLOAT16)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": jnp.ones((3, 4))}, ValueError, "x has shape"),
        ({"x": jnp.ones((2, 3, 4), int)}, TypeError, "x has dtype"),
        ({"kernel": jnp.ones((3, 5))}, ValueError, "kernel has shape"),
        ({"skip": jnp.ones(1)}, ValueError, "skip has shape"),
        ({"return_state": True}, ValueError, "return_state = True: expected False without a state"),
        ({"initial_state": ops.init_long_conv_state(1, 3, 4)}, ValueError, r"state length has shape"),
        ({"initial_state": ops.init_long_conv_state(2, 3, 5)}, ValueError, r"state\.inputs has shape"),
        ({"segment_ids": jnp.ones((2, 2), int)}, ValueError, "segment_ids has shape"),
        ({"mask": jnp.ones((2, 3))}, TypeError, "mask has dtype"),
        ({"implementation": "pallas"}, ValueError, "implementation = 'pallas': expected None or one"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(unchecked, changes, error, message):
    arguments = {"x": jnp.ones((2, 3, 4)), "kernel": jnp.ones((3, 4))}
    with pytest.raises(error, match=message):
        ops.long_conv(**arguments | changes)
