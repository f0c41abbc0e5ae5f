"""Weights that represent: exactly at any length, of low rank within its bound, and each world's."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions import constructions as built
from papers.hyper_self_attention.interactions import environments as worlds
from papers.hyper_self_attention.interactions.data import Interactions, random_interactions, sample
from papers.hyper_self_attention.interactions.embeddings import random_orthogonal, sinusoidal
from papers.hyper_self_attention.interactions.layers import linear_self_attention
from papers.hyper_self_attention.interactions.transform import transform
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close

attend = jax.jit(linear_self_attention)


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_self_attention_represents_any_interactions(x64, length):
    """Theorem 3.1: within 1e-10, at any length, in any orthonormal basis; corollary B.1 to another one."""
    rng = np.random.default_rng(0)
    truth = random_interactions(rng, 7, 3)
    x = sample(rng, 7, length, 4)
    table, q = random_orthogonal(rng, 7), random_orthogonal(rng, 7)
    weights = built.exact(truth.f, truth.w, table)
    assert np.abs(attend(table[x], *weights) - truth.targets(x)).max() < 1e-10
    moved = built.change_basis(weights, q)
    assert np.abs(attend((table @ q.T)[x], *moved) - truth.targets(x)).max() < 1e-10
    assert_close(weights, built.Weights(table.T @ truth.f @ table, table.T @ truth.w), FLOAT64)


@given(draw.seeds, st.integers(1, 6), st.integers(0, 3), st.integers(2, 4))
def test_independent_rows_are_enough(seed, size, more, axes):
    """Of any length and angle, in any width from S on; also for tensors."""
    rng = np.random.default_rng(seed)
    f, w = rng.normal(size=(size,) * axes), rng.normal(size=(size,) * (axes - 1) + (2,))
    left, right = random_orthogonal(rng, size), random_orthogonal(rng, size + more)[:size]
    table = left * rng.uniform(0.5, 2, size=size) @ right
    result = transform(table, *built.exact(f, w, table))
    assert_close(result, f[..., None] * w, FLOAT64)


@given(draw.seeds, st.integers(1, 8), st.integers(0, 8), st.integers(1, 3))
def test_low_rank_is_within_its_bound(seed, size, rank, outputs):
    """Theorem B.2 with an embedding that holds what both scores and values need."""
    rng = np.random.default_rng(seed)
    rank, length = min(rank, size), 6
    decay = np.diag(1.0 / np.arange(1, size + 1) ** 2)
    f = rng.normal(size=(size, size)) @ decay @ rng.normal(size=(size, size))
    truth = Interactions(f, rng.normal(size=(size, outputs)))
    table, weights, per_entity = built.low_rank(truth, rank)
    assert_close(table.T @ table, np.eye(table.shape[1]), FLOAT64)
    assert table.shape[1] <= min(size, 2 * rank + outputs)
    approximate = transform(table, *weights)
    x = sample(rng, size, length, 5)
    y = np.einsum("nijk->nik", approximate[x[:, :, None], x[:, None, :]])
    error = np.linalg.norm(y - truth.targets(x), axis=-1).max()
    singular = np.linalg.svd(f, compute_uv=False)
    rest = singular[rank] if rank < size else 0
    assert per_entity == pytest.approx(rest * np.linalg.norm(truth.w, axis=1).max(), abs=1e-12)
    assert error <= length * per_entity + 1e-10


@given(draw.seeds, st.integers(2, 12).map(lambda half: 2 * half), st.booleans())
def test_functions_of_the_difference(seed, size, orthonormal):
    """Theorem B.6; an even function has a diagonal form (remark B.7)."""
    values = np.random.default_rng(seed).normal(size=size)
    difference = np.subtract.outer(np.arange(size), np.arange(size)) % size
    table = sinusoidal(size, orthonormal)
    c = built.relative(values, orthonormal)
    assert_close(table @ c @ table.T, values[difference], FLOAT64)
    even = built.relative(values + values[-np.arange(size)], orthonormal)
    assert_close(even, np.diag(np.diag(even)), FLOAT64)


@pytest.mark.parametrize("orthonormal", [True, False])
@pytest.mark.parametrize(("radius", "size"), [(0, 2), (2, 36), (5, 360), (4, 18)])
def test_colliding_agents_from_waves(radius, size, orthonormal):
    truth = worlds.collisions(radius, size)
    table = sinusoidal(size, orthonormal)
    c, w = built.sinusoidal_collisions(radius, size, orthonormal)
    assert_close(table @ c @ table.T, truth.f, FLOAT64)
    assert_close(table @ w, truth.w, FLOAT64)
    assert_close(c, built.relative(truth.f[:, 0], orthonormal), FLOAT64)
    if (radius, size, orthonormal) == (5, 360, False):
        assert c[0, 0] == pytest.approx(0.11667, abs=1e-5)  # the paper's figure 1


@pytest.mark.parametrize(("radius", "neighbourhood", "size"), [(0, 1.5, 2), (1, 2.0, 4), (1, 3.0, 12)])
def test_colliding_agents_on_a_grid_from_waves(x64, radius, neighbourhood, size):
    """The whole layer is exact to 1e-10; agents at opposite ends of x are far apart, of y neighbours."""
    truth = worlds.collisions_on_grid(radius, neighbourhood, size)
    table, weights = built.sinusoidal_collisions_on_grid(radius, neighbourhood, size)
    assert table.shape == (size**2, 2 * size**2)
    assert_close(table @ table.T, np.eye(size**2), FLOAT64)
    assert_close(weights.c, np.diag(np.diag(weights.c)), FLOAT64)
    assert np.abs(table @ weights.c @ table.T - truth.f).max() < 1e-10
    assert np.abs(table @ weights.w - truth.w).max() < 1e-10
    x = sample(np.random.default_rng(0), truth.size, 6, 3)
    assert np.abs(attend(table[x], *weights) - truth.targets(x)).max() < 1e-10
