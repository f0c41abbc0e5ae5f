"""The fused step of a short convolution, in the interpreter, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import conv_step, interpreted
from pallas_kernels.conv_step import Variant, formula
from tests.arrays import array
from tests.marks import release_but
from tests.tolerances import BFLOAT16, FLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

TOLERANCES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}

# dtype of the token and of the history, E, T, bias, gated.
CASES = [
    ("bfloat16", "bfloat16", 40, 3, False, True),
    ("float32", "float32", 40, 4, True, False),
    ("float16", "float32", 32, 2, True, True),
    ("bfloat16", "float32", 8, 8, False, False),
]
AGE = np.array([0, 1, 2, 750], np.int32)


def drawn(dtype, kept, channels, taps, bias):
    rng = np.random.default_rng(taps)
    sizes = [(4, 2, channels), (4, taps - 1, channels), (taps, channels), *[(channels,)] * bias]
    inner, history, kernel, *rest = (rng.normal(size=size) for size in sizes)
    # What lies before a row's segment may be anything.
    history = np.where((AGE[:, None] >= np.arange(taps - 1, 0, -1))[..., None], history, np.nan)
    return [array(inner, dtype), array(history, kept), AGE, *(array(x, dtype) for x in (kernel, *rest))]


def expected(inner, history, age, kernel, *bias, gated):
    inner, history, kernel, *bias = (np.asarray(x, np.float64) for x in (inner, history, kernel, *bias))
    window = np.concatenate([np.nan_to_num(history), inner[:, :1]], axis=1)
    total = (window * kernel).sum(axis=1) + sum(bias)
    return total / (1 + np.exp(-total)) * (inner[:, 1] if gated else 1)


@pytest.mark.parametrize("case", release_but(CASES[:2], CASES), ids=str)
def test_rows_of_any_age(case):
    *sizes, gated = case
    arrays = drawn(*sizes)
    with interpreted():
        step = jax.jit(lambda *arrays: conv_step(*arrays, gated=gated, variant=Variant(channels=16)))
        y, history = step(*arrays)
    assert (y.dtype, history.dtype) == tuple(sizes[:2])
    assert_close(y, expected(*arrays, gated=gated), 2 * TOLERANCES[sizes[0]])
    kept = np.concatenate([np.asarray(arrays[1])[:, 1:], np.asarray(arrays[0])[:, :1]], axis=1)
    assert np.array_equal(history, kept.astype(sizes[1]), equal_nan=True)


def test_rows_of_vmap_and_gradients_are_those_of_the_formula():
    inner, history, age, taps = drawn("float32", "float32", 8, 3, bias=False)
    history = jnp.nan_to_num(history)
    with interpreted():
        mapped = jax.jit(jax.vmap(conv_step, in_axes=(0, 0, 0, None)))
        y, _ = mapped(inner[:, None], history[:, None], age[:, None], taps)
        gradients = jax.jit(jax.grad(lambda *x: conv_step(*x, age, taps)[0].sum(), argnums=(0, 1)))(
            inner, history
        )
    assert_close(y[:, 0], expected(inner, history, age, taps, gated=False), FLOAT32)
    plain = jax.jit(jax.grad(lambda *x: formula(*x, age, taps, gated=False)[0].sum(), argnums=(0, 1)))
    assert_close(gradients, plain(inner, history), FLOAT32_GRADIENT)
