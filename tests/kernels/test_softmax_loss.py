"""Losses of logits and their gradient in the interpreter, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(logits, np.float64)[:, :VOCAB])
        one = jnp.asarray(np.asarray(targets)[:, None] == np.arange(VOCAB))
        of_target = jnp.where(one, x, 0).sum(axis=1)
        loss = lambda x: jax.nn.logsumexp(x, axis=1) - jnp.where(one, x, 0).sum(axis=1)  # noqa: E731
        expected = jax.vjp(loss, x)[1](jnp.asarray(weights, jnp.float64))[0]
        # The difference of two numbers of this size is rounded like them.
        size = np.abs(np.asarray(of_target)) + 1
        assert_close(losses / size, loss(x) / size, FLOAT32)
    assert_close(gradient[:, :VOCAB], expected, BFLOAT16 if dtype == "bfloat16" else FLOAT32_GRADIENT)
    assert not np.asarray(gradient[:, VOCAB:]).any()


def test_a_token_that_is_no_number_breaks_its_row_only():
    logits, targets, weights = drawn()
    logits = logits.at[1, 3].set(jnp.nan).at[4, 2].set(jnp.inf)
    with interpreted():
        gradient, losses = jax.jit(run)(logits, targets, weights.at[2].set(jnp.nan))
    assert np.array_equal(np.isnan(losses), [False, True, False, False, True, False])
    assert np.array_equal(np.isnan(gradient[:, :VOCAB]).any(axis=1), [False, True, True, False, True, False])


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
