"""RetNet against the parallel form of its paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.mixers.built import runner
from tests.ops import oracles
from tests.tolerances import FINITE_DIFFERENCE, FLOAT32_ANGLE, FLOAT64, assert_close

HEADS, LENGTH, WIDTH = 2, 21, 6


def silu(x):
    return x / (1 + np.exp(-x))


def parallel_form(weights, x, rotary):
    """Equations 5, 6 and 8 of Sun et al. 2023 in float64: ((Q K^T) * D) V, group norm, gate."""
    q, k, v, gate = (
        np.einsum("bnd,dhk->bnhk", x, weights[name]["kernel"]) for name in ("q", "k", "v", "gate")
    )
    if rotary:
        positions = np.arange(LENGTH)[None]
        q, k = (oracles.rotary(a, positions, WIDTH, 10000.0, interleaved=True) for a in (q, k))
    distance = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
    gamma = 1 - 2.0 ** (-5 - np.arange(HEADS))
    D = np.where(distance >= 0, gamma[:, None, None] ** np.maximum(distance, 0), 0)
    y = np.einsum("bnhk,bmhk,hnm,bmhv->bnhv", q, k, D, v) / np.sqrt(WIDTH)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    y = (y * weights["norm_scale"] + weights["norm_bias"]) * silu(gate)
    return np.einsum("bnhv,hvd->bnd", y, weights["out"]["kernel"])


@pytest.mark.parametrize("rotary", [True, False])
def test_it_is_the_parallel_form_of_the_paper(rotary, x64):
    """Values, and the derivative of a weighted sum along a random direction of all parameters."""
    run = runner("retnet", d_model=12, num_heads=HEADS, chunk_size=8, rotary=rotary, dtype=jnp.float64)
    x, mix = np.random.default_rng(0).normal(size=(2, 2, LENGTH, 12))
    weights = jax.tree.map(np.float64, nn.meta.unbox(run.variables)["params"])

    @jax.jit
    def gradient(weights):
        def loss(weights):
            y, _ = run.mixer.apply({"params": weights}, x)
            return jnp.sum(y * mix), y

        return jax.grad(loss, has_aux=True)(weights)

    gradients, y = gradient(weights)
    tolerance = LENGTH * FLOAT32_ANGLE if rotary else FLOAT64
    assert_close(y, parallel_form(weights, x, rotary), tolerance)
    rng, step = np.random.default_rng(1), 1e-5
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), weights)
    above, below = (
        np.sum(mix * parallel_form(jax.tree.map(lambda w, d: w + s * d, weights, direction), x, rotary))  # noqa: B023
        for s in (step, -step)
    )
    slope = jax.tree.reduce(np.add, jax.tree.map(np.vdot, gradients, direction))
    assert_close(slope, (above - below) / (2 * step), max(tolerance, FINITE_DIFFERENCE))
