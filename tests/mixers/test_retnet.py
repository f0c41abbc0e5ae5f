"""RetNet against the parallel form of its paper."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from based_jax.testing import laws
from tests.mixers.built import runner
from tests.ops import oracles
from tests.tolerances import FLOAT32, assert_close


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("rotary", [True, False])
def test_it_is_the_parallel_form_of_the_paper(rotary):
    """Equations 5, 6 and 8 of Sun et al. 2023 in float64: ((Q K^T) * D) V, group norm, gate."""
    heads, length, width = 2, 21, 6
    run = runner("retnet", d_model=12, num_heads=heads, chunk_size=8, rotary=rotary)
    x = laws.inputs(2, length, 12, 0)
    weights = jax.tree.map(np.float64, nn.meta.unbox(run.variables)["params"])
    q, k, v, gate = (
        np.einsum("bnd,dhk->bnhk", x, weights[name]["kernel"]) for name in ("q", "k", "v", "gate")
    )
    if rotary:
        positions = np.arange(length)[None]
        q, k = (oracles.rotary(a, positions, width, 10000.0, interleaved=True) for a in (q, k))
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    gamma = 1 - 2.0 ** (-5 - np.arange(heads))
    D = np.where(distance >= 0, gamma[:, None, None] ** np.maximum(distance, 0), 0)
    y = np.einsum("bnhk,bmhk,hnm,bmhv->bnhv", q, k, D, v) / np.sqrt(width)
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    y = (y * weights["norm_scale"] + weights["norm_bias"]) * silu(gate)
    assert_close(run(x)[0], np.einsum("bnhv,hvd->bnd", y, weights["out"]["kernel"]), FLOAT32)
