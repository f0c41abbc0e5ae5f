"""What one layer can and another cannot: width, factors, and interactions of three."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.constructions import rank_bound
from papers.hyper_self_attention.interactions.data import Interactions, random_interactions
from papers.hyper_self_attention.interactions.embeddings import concatenated, one_hot
from papers.hyper_self_attention.interactions.layers import linear_hfa, linear_self_attention
from papers.hyper_self_attention.interactions.transform import transform
from tests.ops import draw

IDENTITY = Interactions(np.eye(5), np.ones((5, 1)))


@given(draw.seeds, st.integers(1, 6), st.integers(1, 6), st.integers(1, 2))
def test_no_narrow_layer_is_below_the_rank_bound(seed, size, width, outputs):
    rng = np.random.default_rng(seed)
    truth = random_interactions(rng, size, outputs)
    table = rng.normal(size=(size, width))
    scale = rng.choice([0.1, 1.0])
    any_layer = transform(table, scale * rng.normal(size=(width, width)), rng.normal(size=(width, outputs)))
    error = np.linalg.norm(any_layer - truth.f[..., None] * truth.w)
    assert error >= rank_bound(truth, width) - 1e-12
    assert width < size or rank_bound(truth, width) == 0


TWINS = [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]
"""pairs of features: all four of two values each, the first one twice"""


def mixed(y: np.ndarray) -> np.ndarray:
    """The mixed second difference y(a, b) - y(a, b') - y(a', b) + y(a', b') of the outputs at `TWINS`."""
    return y[0] - y[2] - y[3] + y[4]


@pytest.mark.parametrize("residual", [0.0, 1.0])
def test_no_depth_of_linear_self_attention_couples_features(x64, residual):
    """Features side by side: an output is linear in its own entity, so its difference is 0 (remark F.6)."""
    x = concatenated(one_hot(3), one_hot(3))[[3 * a + b for a, b in TWINS]]

    @jax.jit
    def deep(cs, ws, residual):
        y = x
        for c, w in zip(cs, ws, strict=True):
            y = residual * y + sum(linear_self_attention(y, *head) for head in zip(c, w, strict=True))
        return y

    @settings(max_examples=10)
    @given(draw.seeds)
    def law(seed):
        rng = np.random.default_rng(seed)
        cs, ws = 0.1 * rng.normal(size=(4, 3, 6, 6)), 0.3 * rng.normal(size=(4, 3, 6, 6))
        y = np.asarray(deep(cs, ws, residual))
        assert np.abs(mixed(y)).max() <= 1e-14 * np.abs(y).max()

    law()


def test_one_head_of_two_factors_couples_features(x64):
    """The number of entities that share both features with one, itself included: mixed difference 1."""
    x = concatenated(one_hot(3), one_hot(3))[[3 * a + b for a, b in TWINS]]
    first = np.diag([1.0, 1, 1, 0, 0, 0])
    cs = np.stack([first, np.eye(6) - first])
    ones = np.array([1.0, 1, 1, 0, 0, 0])[:, None]
    y = np.asarray(jax.jit(linear_hfa)(x, cs, np.stack([ones, ones])))[:, 0]
    assert y.tolist() == [TWINS.count(pair) for pair in TWINS]
    assert mixed(y) == 1
