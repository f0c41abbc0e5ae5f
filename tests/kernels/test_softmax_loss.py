"""Losses of logits and their gradient in the interpreter, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pallas_kernels import interpreted, softmax_loss
from pallas_kernels.softmax_loss import Variant, formula
from tests.arrays import array
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close

ROWS, WIDTH, VOCAB = 6, 40, 35
VARIANT = Variant(columns=16, warps=1)


def drawn():
    """Large and small logits; a target that is no column, one that is a padded column's neighbour."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(ROWS, WIDTH)) + 100 * np.arange(ROWS)[:, None] - 200
    logits[:, VOCAB:] = 1e30
    targets = np.array([0, VOCAB, VOCAB - 1, -100, 15, 16])
    return array(logits, "float32"), array(targets, "int32"), array(rng.uniform(size=ROWS), "float32")


def run(*arrays, dtype="float32"):
    return softmax_loss(*arrays, vocab=VOCAB, dtype=dtype, variant=VARIANT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_and_gradient(dtype):
    logits, targets, weights = drawn()
    with interpreted():
        gradient, losses = jax.jit(lambda *arrays: run(*arrays, dtype=dtype))(logits, targets, weights)
    assert gradient.dtype == dtype
    x, weights, gradient = (np.asarray(each, np.float64) for each in (logits, weights, gradient))
    x, one = x[:, :VOCAB], np.asarray(targets)[:, None] == np.arange(VOCAB)
    of_target, shares = (x * one).sum(axis=1), scipy.special.softmax(x, axis=1)
    # The difference of two numbers of this size is rounded like them.
    size = np.abs(of_target) + 1
    assert_close(losses / size, (scipy.special.logsumexp(x, axis=1) - of_target) / size, FLOAT32)
    expected = weights[:, None] * (shares - one)
    assert_close(gradient[:, :VOCAB], expected, BFLOAT16 if dtype == "bfloat16" else FLOAT32_GRADIENT)
    assert not gradient[:, VOCAB:].any()


def test_a_small_loss_beside_large_logits_keeps_its_digits():
    logits, _, weights = drawn()
    targets = jnp.arange(ROWS)
    logits = logits.at[:, :VOCAB].set(-8.0).at[targets, targets].set(0.0)
    with interpreted():
        small, large = (jax.jit(run)(logits + shift, targets, weights)[1] for shift in (0.0, 8192.0))
    assert_close(small, np.full(ROWS, np.log1p((VOCAB - 1) * np.exp(-8))), 1e-4)  # a sum near 1, to some 6e-8
    assert_close(large, small, 1e-5)  # the same differences of logits


def test_targets_beyond_32_bits_are_no_columns():
    logits, _, weights = drawn()
    with jax.enable_x64(True), interpreted():
        far, none = (run(logits, jnp.full(ROWS, target), weights)[1] for target in (1 << 32, -1))
    np.testing.assert_array_equal(far, none)


def test_a_token_that_is_no_number_breaks_its_row_only():
    logits, targets, weights = drawn()
    logits = logits.at[1, 3].set(jnp.nan).at[4, 2].set(jnp.inf)
    with interpreted():
        gradient, losses = jax.jit(run)(logits, targets, weights.at[2].set(jnp.nan))
    assert np.array_equal(np.isnan(losses), [False, True, False, False, True, False])
    assert np.array_equal(np.isnan(gradient[:, :VOCAB]).any(axis=1), [False, True, True, False, True, False])


@pytest.mark.release
def test_vmapped_and_differentiated_it_is_the_formula():
    logits, targets, weights = drawn()
    plain = lambda *arrays: formula(*arrays, vocab=VOCAB, dtype="float32")  # noqa: E731

    def both(function):
        def total(logits, weights):
            gradient, losses = function(logits, targets, weights)
            return jnp.sum(jnp.sin(gradient)) + jnp.sum(losses * weights)

        mapped = jax.vmap(function, (0, None, None))(logits[None], targets, weights)
        twice = jax.grad(lambda *x: jnp.sum(jax.grad(total)(*x) ** 2))(logits, weights)
        return mapped, jax.grad(total, argnums=(0, 1))(logits, weights), twice

    with interpreted():
        found = jax.jit(lambda: both(run))()
    assert_close(found, jax.jit(lambda: both(plain))(), FLOAT32_GRADIENT)
