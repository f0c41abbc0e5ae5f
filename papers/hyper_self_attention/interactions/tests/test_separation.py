"""What one layer can and another cannot: width, factors, and interactions of three."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.constructions import exact, heads, rank_bound, skip_trigrams
from papers.hyper_self_attention.interactions.data import Interactions, random_interactions
from papers.hyper_self_attention.interactions.embeddings import concatenated, one_hot, random_orthogonal
from papers.hyper_self_attention.interactions.layers import (
    hyper_attention,
    linear_hfa,
    linear_self_attention,
    multi_head,
)
from papers.hyper_self_attention.interactions.transform import transform
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close

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


def test_width_is_necessary(x64):
    """Five symbols that act on themselves: learned at width 5, not at 4, the embedding too (theorem 3.1)."""

    def loss(params, columns):
        table = params["table"] * columns
        t = (table @ params["c"] @ table.T) * (table @ params["w"]).T
        return ((t - IDENTITY.f) ** 2).sum()

    @jax.jit
    def learn(params, columns):
        optimizer = optax.adam(optax.cosine_decay_schedule(0.03, 2000))

        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, columns), state)
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), None, 2000)
        return loss(params, columns)

    rng = np.random.default_rng(0)
    table = jnp.asarray(random_orthogonal(rng, 5))
    # Where theorem 4.4 starts: no scores, positive values.
    params = {"table": table, "c": jnp.zeros((5, 5)), "w": table.T @ jnp.ones((5, 1))}
    narrow, wide = (float(learn(params, jnp.arange(5) < width)) for width in (4, 5))
    assert rank_bound(IDENTITY, 4) == pytest.approx(1)
    assert rank_bound(IDENTITY, 5) == 0
    assert narrow >= 1 - 1e-12
    assert wide < 1e-6


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
            y = residual * y + multi_head(linear_self_attention, y, c, w)
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


@given(draw.seeds, st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_heads_needed(seed, size, outputs, rank):
    """The largest rank of what one symbol does to all others, and then without error."""
    rng = np.random.default_rng(seed)
    rank = min(rank, size, outputs)
    table = np.einsum(
        "rab,rbk->abk", rng.normal(size=(rank, size, size)), rng.normal(size=(rank, size, outputs))
    )
    c, w = heads(table)
    assert len(c) == len(w) == rank
    each = [transform(one_hot(size), *head) for head in zip(c, w, strict=True)]
    assert_close(sum(each), table, FLOAT64)
    fewer = sum(transform(one_hot(size), *(rng.normal(size=a.shape) for a in (c[0], w[0]))) for _ in c[1:])
    missed = np.linalg.svd(table[:, 0], compute_uv=False)[rank - 1]
    assert np.linalg.norm(table - fewer) >= missed - 1e-12


def test_skip_trigrams(x64):
    """What "keep" does has two directions: one head of pairs cannot, two can, and one head of triples."""
    keep, at, word = 0, 2, 3
    weights, pairs = skip_trigrams()
    assert np.linalg.matrix_rank(pairs[:, keep]) == 2
    needed = heads(pairs)
    assert len(needed.c) == 2
    attend = jax.jit(lambda x: hyper_attention(x, *weights))
    by_pairs = jax.jit(lambda x: multi_head(linear_self_attention, x, *needed))
    for preposition, target in ((1, [1, 0]), (at, [0, 1])):
        x = one_hot(4)[[keep, word, preposition]]
        assert np.asarray(attend(x))[-1].tolist() == target
        assert np.abs(np.asarray(by_pairs(x))[-1] - target).max() < 1e-12
        assert np.asarray(attend(one_hot(4)[[word, word, preposition]])).tolist() == [[0, 0]] * 3
        assert np.asarray(attend(x[::-1])).tolist() == [[0, 0]] * 3, "keep is not before it"


def test_pairs_of_features_are_exact_for_self_attention(x64):
    """What is impossible side by side is possible on the product of the features, at its width."""
    symbols = [3 * a + b for a, b in TWINS]
    weights = exact(np.eye(9), np.ones((9, 1)), one_hot(9))
    y = np.asarray(jax.jit(linear_self_attention)(one_hot(9)[symbols], *weights))[:, 0]
    assert mixed(y) == 1
