"""Ops without a contract: what is under the mask, NaN too, changes nothing at real tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops.selection import attention_of_some
from tests.arrays import array
from tests.marks import release_but
from tests.tolerances import assert_close

REAL = np.arange(7) < np.array([[7], [4]])
MASK = array(REAL)
GENERATOR = np.random.default_rng(0)
QKV = [GENERATOR.normal(size=(2, 7, 2, size)).astype(np.float32) for size in (3, 3, 4)]
WEIGHTS = array(GENERATOR.normal(size=(2, 3)), np.float32)
CHOSEN = array(np.arange(7) % 2 == np.ones((2, 1)))
CALLS = {
    "attention_of_some": lambda *qkv: attention_of_some(*qkv, CHOSEN, 5, mask=MASK),
    "conv_attention": lambda *qkv: ops.conv_attention(*qkv, starts=(0, 1, 4), mask=MASK),
    "landmark_attention": lambda *qkv: ops.landmark_attention(*qkv, tokens_per_landmark=2, mask=MASK),
    "scatterbrain_attention": lambda *qkv: ops.scatterbrain_attention(*qkv, WEIGHTS, left=2, mask=MASK),
    "token_shift": lambda q, k, v: ops.token_shift(v[:, :, 0], mask=MASK),
}


def under_mask(x, value):
    """x with another value at masked tokens."""
    xp = np if isinstance(x, np.ndarray) else jnp  # NumPy compiles nothing
    return xp.where(REAL.reshape(2, 7, *[1] * (x.ndim - 2)), x, xp.asarray(value, x.dtype))


@pytest.mark.parametrize("name", release_but(["conv_attention", "token_shift"], CALLS))
def test_padding_is_never_read(name):
    def loss(arrays):
        y = under_mask(CALLS[name](*arrays), 0)
        return jnp.sum(y**2), y

    run = jax.jit(jax.grad(loss, has_aux=True))

    def result(value):
        gradients, outputs = run([under_mask(x, value) for x in QKV])
        return [under_mask(np.asarray(g), 0) for g in gradients], outputs

    expected = result(0)
    for value in (np.nan, np.inf, 1e30):
        assert_close(result(value), expected, 0.0)
