"""How far scores are from those of given segments, and by how much that moves outputs."""

import jax
import numpy as np
import pytest

from based_jax.ops import conv_basis
from based_jax.ops.conv_basis.conv_recovery import COLUMNS


@pytest.mark.parametrize("length", [7, COLUMNS + 21])
def test_score_error(length):
    """Against the dense matrices, for fewer and more columns than a block has; of some columns and rows."""
    rng = np.random.default_rng(length)
    q, k = rng.normal(size=(2, 2, length, 2, 3))
    starts = np.sort(rng.choice(length, (2, 2, 3)), axis=-1).astype(np.int32)
    starts[..., 0] = 0
    columns, counts = rng.choice(length, 5).astype(np.int32), np.array([length, length // 2])
    with jax.enable_x64(True):
        error = jax.jit(conv_basis.conv_score_error)(q, k, starts)
        sampled = jax.jit(conv_basis.conv_score_error)(
            q, k, starts, columns, np.arange(length) < counts[:, None]
        )
    for row, head in np.ndindex(2, 2):
        scores = np.tril(q[row, :, head] @ k[row, :, head].T)
        own = np.unique(starts[row, head])
        anchors = np.stack([np.append(scores[s:, s], np.zeros(s)) for s in own])
        off = np.abs(scores - conv_basis.conv_matrix(anchors, own))
        assert error[row, head] == pytest.approx(off.max(), abs=1e-12)
        assert sampled[row, head] == pytest.approx(off[: counts[row], columns].max(), abs=1e-12)
