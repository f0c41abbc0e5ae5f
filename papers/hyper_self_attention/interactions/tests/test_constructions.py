"""Weights that represent: exactly at any length, of low rank within its bound, and each world's."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions import constructions as built
from papers.hyper_self_attention.interactions import environments as worlds
from papers.hyper_self_attention.interactions.data import Interactions, random_interactions, sample
from papers.hyper_self_attention.interactions.embeddings import (
    one_hot,
    product,
    random_orthogonal,
    sinusoidal,
)
from papers.hyper_self_attention.interactions.layers import (
    hyper_attention,
    linear_hfa,
    linear_self_attention,
    multi_head,
)
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


def test_hyper_attention_represents_triples(x64):
    """Theorem G.4 sums all pairs of acting entities; ordered tuples are other sums where symbols repeat."""
    rng = np.random.default_rng(0)
    f, w = rng.normal(size=(4, 4, 4)), rng.normal(size=(4, 4, 2))
    table = random_orthogonal(rng, 4)
    x = np.array([3, 0, 0, 2, 1, 0])
    attend = jax.jit(hyper_attention, static_argnames="order")
    y = {o: attend(table[x], *built.exact(f, w, table), order=o) for o in ("all", "ordered", "strict")}
    pairs = [(j, k) for j in range(6) for k in range(6)]
    chosen = {"all": pairs, "ordered": [p for p in pairs if p[0] <= p[1]]}
    chosen["strict"] = [p for p in pairs if p[0] < p[1]]
    for order, summed in chosen.items():
        expected = [sum(f[i, x[j], x[k]] * w[x[j], x[k]] for j, k in summed) for i in x]
        assert_close(y[order], np.array(expected), FLOAT64, order)
    assert np.abs(y["all"] - y["ordered"]).max() > 0.1


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


def test_symmetric_interactions_need_half_the_width(x64):
    rng = np.random.default_rng(0)
    f = rng.normal(size=(10, 10))
    truth = Interactions(f + f.T, rng.normal(size=(10, 2)))
    table, weights, per_entity = built.low_rank(truth, 2)
    assert table.shape == (10, 4)
    assert built.low_rank(Interactions(f, truth.w), 2).table.shape == (10, 6)
    x = sample(rng, 10, 12, 100)
    error = np.linalg.norm(attend(table[x], *weights) - truth.targets(x), axis=-1).max()
    assert 0.01 < error <= 12 * per_entity


def test_parameters():
    """Those of the exact construction; one more output costs a column."""
    weights = built.exact(np.eye(7), np.ones((7, 3)), one_hot(7))
    assert built.parameters(7, 3, 5) == (weights.c.size + weights.w.size, 25 * 49)


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-4, 4))
def test_theorem_b2_as_printed_is_false(p, q, scale):
    """One singular value, so no error at width 1 is promised; every layer of width 1 is off by 1/2."""
    truth = built.printed_counter_example()
    assert np.linalg.svd(truth.f, compute_uv=False).tolist() == [1, 0]
    table = np.array([[p], [q]])
    result = transform(table, np.array([[scale]]), np.array([[1.0]]))[..., 0]
    assert np.abs(result - truth.f * truth.w.T).max() >= 0.5
    best = transform(np.ones((2, 1)), np.array([[0.5]]), np.array([[1.0]]))[..., 0]
    assert np.abs(best - truth.f * truth.w.T).max() == 0.5
    repaired = built.low_rank(truth, 1)
    assert_close(transform(*repaired[:1], *repaired.weights)[..., 0], truth.f, 1e-15)


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


@given(draw.seeds, *[st.integers(1, 3).map(lambda half: 2 * half)] * 2, st.booleans())
def test_functions_of_both_differences(seed, width, height, orthonormal):
    """Within 1e-10 in float64 on a torus; even in each axis: a diagonal form."""
    values = np.random.default_rng(seed).normal(size=(width, height))
    x, y = np.unravel_index(np.arange(width * height), (width, height))
    dx, dy = (np.subtract.outer(p, p) for p in (x, y))
    table = product(sinusoidal(width, orthonormal), sinusoidal(height, orthonormal))
    c = built.relative_on_grid(values, orthonormal)
    assert np.abs(table @ c @ table.T - values[dx % width, dy % height]).max() < 1e-10
    even = sum(values[s * np.arange(width)][:, t * np.arange(height)] for s in (1, -1) for t in (1, -1))
    form = built.relative_on_grid(even, orthonormal)
    assert_close(form, np.diag(np.diag(form)), FLOAT64)


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


def test_agents_on_grids():
    """Products of embeddings are embeddings of pairs: theorem 3.1 holds for them too."""
    waves = product(sinusoidal(4), sinusoidal(4))
    truth = worlds.collisions_on_grid(0, 1.5, 4)
    assert_close(transform(waves, *built.exact(truth.f, truth.w, waves))[..., 0], -truth.f, FLOAT64)
    table = product(one_hot(2), waves)
    truth = worlds.collisions_of_two_policies(0, 4)
    assert_close(transform(table, *built.exact(truth.f, truth.w, table))[..., 0], -truth.f, FLOAT64)


@pytest.mark.parametrize("radius", [0, 1])
def test_predators_and_prey(x64, radius):
    """Three heads of three factors and width 27 are without any error."""
    rng = np.random.default_rng(0)
    weights = built.hunt(radius, 6)
    hunt = jax.jit(functools.partial(multi_head, linear_hfa))
    for length in (1, 3, 9, 30):
        agents = worlds.Agents(*(rng.integers(n, size=(3, length)) for n in (2, 2, 6, 6)))
        x = built.embed_agents(agents, 6)
        assert x.shape[-1] == 27
        y = np.asarray(hunt(x, *weights))[..., 0]
        assert np.array_equal(y, worlds.predators_and_prey(agents, radius))


def test_self_attention_hunts_in_a_wide_space_only():
    """One dimension for each of the 144 kinds of agents is enough, less than 64 are not."""
    kinds = worlds.Agents(*np.unravel_index(np.arange(144), (2, 2, 6, 6)))
    met = worlds.meet(kinds, 0) & (kinds.species[:, None] != kinds.species)
    gain = np.where(kinds.species == worlds.PREY, 1.0, -1.0)
    truth = Interactions(met.astype(float), gain[:, None])
    x = sample(np.random.default_rng(0), 144, 9, 4)
    several = worlds.Agents(*(feature[x] for feature in (kinds.species, kinds.policy, kinds.x, kinds.y)))
    assert np.array_equal(truth.targets(x)[..., 0], worlds.predators_and_prey(several, 0))
    assert built.rank_bound(truth, 63) > 0.1
    assert built.rank_bound(truth, 64) < 1e-10


def test_patterns(x64):
    rng = np.random.default_rng(0)
    image = rng.integers(2, size=(5, 3, 4)).astype(bool)
    offsets = [(0, 1), (1, 0), (-1, -1), (0, 0)]
    table, weights = built.pattern_detector(3, 4, offsets)
    y = attend(table[worlds.pixels(image)], *weights)
    assert np.array_equal(np.asarray(y).reshape(5, 3, 4), worlds.black_at(image, offsets))


def test_time_series(x64):
    rng = np.random.default_rng(0)
    delays, matrix = {2: 3.0, 5: 7.0}, rng.normal(size=(3, 3)) / 9
    series = worlds.time_series(rng.normal(size=(5, 3)), delays, matrix, 12)
    y = attend(built.embed_series(series[:11]), *built.autoregression(delays, matrix, 11))
    assert_close(y[5:], series[5:], FLOAT64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: built.exact(np.eye(2), np.ones((2, 1)), np.ones((2, 3))), "rank of table = 1: expected 2"),
        (lambda: built.exact(np.eye(3), np.ones((3, 1)), np.eye(2)), "f has shape"),
        (lambda: built.exact(np.eye(2), np.ones((3, 1)), np.eye(2)), "w has shape"),
        (lambda: built.exact(np.ones(2), np.ones(1), np.eye(2)), "f.ndim = 1"),
        (lambda: built.low_rank(built.printed_counter_example(), 3), r"rank = 3: expected 0\.\.2"),
        (lambda: built.heads(np.ones((2, 3, 1))), "table has shape"),
        (lambda: built.relative(np.ones(3)), "an even number"),
        (lambda: built.sinusoidal_collisions(2, 8), "more than 4 radius = 8"),
        (lambda: built.relative_on_grid(np.ones((2, 3))), "an even number"),
        (lambda: built.relative_on_grid(np.ones(4)), "values has shape"),
        (lambda: built.sinusoidal_collisions_on_grid(0, 1.0, 3), "size = 3: expected an even number"),
        (lambda: built.hunt(-1, 3), "radius = -1"),
        (lambda: built.pattern_detector(0, 3, []), r"\(0, 3\)"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
