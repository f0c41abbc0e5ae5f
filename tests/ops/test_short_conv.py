"""The short convolution: definition, and the laws of every op with a state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import array
from tests.ops import draw, oracles
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, assert_close

conv = functools.partial(jax.jit, static_argnames="return_state")(ops.short_conv)

# (B, N, E, T): one token, fewer tokens than taps, one tap, one channel, odd lengths
SIZES = [(1, 1, 1, 1), (2, 1, 2, 3), (2, 2, 3, 4), (3, 7, 2, 3), (1, 5, 1, 1), (2, 9, 4, 2)]


def numbers(seed, batch, length, channels, taps, dtype=np.float64):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, length, channels)).astype(dtype)
    return x, rng.normal(size=(taps, channels)).astype(dtype), rng.normal(size=channels).astype(dtype)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_definition_values_states_and_gradients(sizes):
    """With and without bias, segments and padding, against the sum over taps."""
    batch, length, _, taps = sizes

    @jax.jit
    def everything(x, kernel, bias, ids, mask, weights):
        def loss(x, kernel, bias):
            y, state = ops.short_conv(x, kernel, bias, return_state=True, segment_ids=ids, mask=mask)
            return (y * weights).sum(), (y, state)

        arguments = (0, 1) if bias is None else (0, 1, 2)
        return jax.value_and_grad(loss, arguments, has_aux=True)(x, kernel, bias)

    @given(
        draw.seeds,
        st.booleans(),
        st.none() | draw.segment_ids(batch, length),
        st.none() | draw.counts(batch, length),
    )
    @settings(max_examples=8)
    def law(seed, with_bias, ids, counts):
        x, kernel, bias = numbers(seed, *sizes)
        bias = bias if with_bias else None
        real = np.ones((batch, length), bool) if counts is None else draw.mask(counts, length)
        weights = np.random.default_rng(0).normal(size=x.shape) * real[..., None]
        with jax.enable_x64(True):
            mask = None if counts is None else real
            (_, (y, state)), gradients = everything(x, kernel, bias, ids, mask, weights)
            expected = oracles.short_conv(x, kernel, bias, segment_ids=ids, counts=counts)
            assert_close(np.where(real[..., None], y, 0), expected, FLOAT64)
            state = jax.tree.map(np.asarray, state)
            for row, count in enumerate(real.sum(1)):
                text = np.concatenate([np.zeros((taps - 1, x.shape[2])), x[row, :count]])
                assert_close(state.inputs[row], text[count:], FLOAT64)
                assert state.stream.length[row] == count
            # The op is linear in x and the kernel, each alone: the gradient gives the value back.
            without_bias = (expected - (0 if bias is None else bias)) * weights
            for gradient, a in zip(gradients, (x, kernel), strict=False):
                assert_close((np.asarray(gradient) * a).sum(), without_bias.sum(), FLOAT64, magnitude=1.0)
            if bias is not None:
                assert_close(gradients[2], weights.sum((0, 1)), FLOAT64)

    law()


def test_impulse_response_reads_the_taps_backwards():
    """The last tap multiplies the current token."""
    kernel = array([[3.0], [2.0], [1.0]])
    impulse = jnp.zeros((1, 6, 1)).at[0, 2].set(1)
    assert ops.short_conv(impulse, kernel)[0, :, 0].tolist() == [0, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("taps", [1, 3, 6])
@pytest.mark.parametrize("segments", [False, True])
def test_split_law(taps, segments):
    """Pieces of any length, also shorter than the taps, equal one call."""
    sizes = (2, 7, 2, taps)

    @given(draw.seeds, draw.segment_ids(2, 7), draw.pieces(7))
    @settings(max_examples=10)
    def law(seed, ids, lengths):
        x, kernel, bias = numbers(seed, *sizes, np.float32)
        ids = ids if segments else None
        whole, final = conv(x, kernel, bias, return_state=True, segment_ids=ids)
        state, outputs = ops.init_short_conv_state(2, 2, taps), []
        for begin, size in zip(np.cumsum([0, *lengths]), lengths, strict=False):
            piece = slice(begin, begin + size)
            y, state = conv(
                x[:, piece], kernel, bias, initial_state=state, return_state=True,
                segment_ids=None if ids is None else ids[:, piece],
            )  # fmt: skip
            outputs.append(y)
        assert_close(np.concatenate(outputs, axis=1), whole, FLOAT32)
        assert_close(state, final, FLOAT32)

    law()


def test_padding_law():
    """Two padded calls, rows without any token included, equal one call on each row's real tokens."""

    @given(draw.seeds, draw.counts(3, 5), draw.counts(3, 5))
    def law(seed, first, second):
        x, kernel, bias = numbers(seed, 3, 10, 2, 3)
        with jax.enable_x64(True):
            y1, state = conv(x[:, :5], kernel, bias, return_state=True, mask=draw.mask(first, 5))
            y2, state = conv(
                x[:, 5:], kernel, bias, initial_state=state, return_state=True, mask=draw.mask(second, 5)
            )
        y1, y2, state = jax.tree.map(np.asarray, (y1, y2, state))
        for row, (a, b) in enumerate(zip(first, second, strict=True)):
            text = np.concatenate([x[row, :a], x[row, 5 : 5 + b]])[None]
            y = np.concatenate([y1[row, :a], y2[row, :b]])
            assert_close(y, oracles.short_conv(text, kernel, bias)[0], FLOAT64)
            assert_close(state.inputs[row], np.concatenate([np.zeros((2, 2)), text[0]])[-2:], FLOAT64)
            assert state.stream.length[row] == a + b

    law()


@given(draw.seeds, st.integers(0, 6))
def test_causality_and_reach(seed, t):
    """Token t reaches the outputs t ... t + T - 1 and no others."""
    x, kernel, bias = numbers(seed, 2, 7, 2, 3, np.float32)
    later = x + np.float32(np.arange(7) == t)[:, None]
    changed = np.asarray(conv(later, kernel, bias)) != conv(x, kernel, bias)
    reached = np.arange(7)[(np.arange(7) >= t) & (np.arange(7) < t + 3)]
    assert np.flatnonzero(changed.all((0, 2))).tolist() == reached.tolist()
    assert np.flatnonzero(changed.any((0, 2))).tolist() == reached.tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.bfloat16, BFLOAT16), (jnp.float16, FLOAT16)])
def test_low_precision(dtype, tolerance):
    x, kernel, bias = (np.asarray(a, dtype) for a in numbers(0, 2, 9, 4, 3))
    y, state = conv(x, kernel, bias, return_state=True)
    assert y.dtype == state.inputs.dtype == dtype
    assert_close(y, oracles.short_conv(*(np.asarray(a, np.float64) for a in (x, kernel, bias))), tolerance)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": jnp.ones((3, 4))}, ValueError, "x has shape"),
        ({"x": jnp.ones((2, 0, 4))}, ValueError, "x has shape .* no empty axis"),
        ({"x": jnp.ones((2, 3, 4), int)}, TypeError, "x has dtype"),
        ({"kernel": jnp.ones((3, 5))}, ValueError, "kernel has shape"),
        ({"kernel": jnp.ones((0, 4))}, ValueError, "kernel has shape .* no empty axis"),
        ({"kernel": jnp.ones(4)}, ValueError, "kernel has shape"),
        ({"bias": jnp.ones(1)}, ValueError, "bias has shape"),
        (
            {"initial_state": ops.init_short_conv_state(1, 4, 3)},
            ValueError,
            r"initial_state\.inputs has shape",
        ),
        (
            {"initial_state": ops.init_short_conv_state(2, 5, 3)},
            ValueError,
            r"initial_state\.inputs has shape",
        ),
        (
            {"initial_state": ops.init_short_conv_state(2, 4, 4)},
            ValueError,
            r"initial_state\.inputs has shape",
        ),
        ({"segment_ids": jnp.ones((2, 2), int)}, ValueError, "segment_ids has shape"),
        ({"mask": jnp.ones((2, 3))}, TypeError, "mask has dtype"),
    ],
)
def test_errors_name_the_argument(unchecked, changes, error, message):
    arguments = {"x": jnp.ones((2, 3, 4)), "kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}
    with pytest.raises(error, match=message):
        ops.short_conv(**arguments | changes)
