"""The flow: its gradient is the layer's, it keeps its promises, and what it learns holds everywhere."""

import jax
import numpy as np
import pytest

from papers.hyper_self_attention.interactions import data, embeddings
from papers.hyper_self_attention.interactions.constructions import Weights
from papers.hyper_self_attention.interactions.gradient_flow import flow, in_entities, limit, promise, start
from papers.hyper_self_attention.interactions.layers import hyper_attention, linear_self_attention
from papers.hyper_self_attention.interactions.moments import moments, squared_error
from papers.hyper_self_attention.interactions.transform import gap, transform
from papers.hyper_self_attention.interactions.versatility import versatility
from tests.tolerances import FLOAT64, assert_close

SIZE, LENGTH, SEQUENCES = 4, 5, 200
LENGTHS = (1, 2, 10, 40)

EXACT = 1e-20
"""Squared errors of trained weights: at rest only rounding moves them, 1e-16 of values near 1 each."""


def outputs(weights, table, x):
    """Of self-attention or HyperAttention, on vectors."""
    with jax.enable_x64(True):
        return np.asarray(run(table[x], weights))


@jax.jit
def run(vectors, weights):
    layer = linear_self_attention if weights.c.ndim == 2 else hyper_attention
    return layer(vectors, *weights)[..., 0]


def follow(began, made, table=None, **how):
    """All points, the start among them."""
    return [(0.0, began), *flow(began, made, table, **how)]


@pytest.fixture(scope="module")
def world():
    """Interactions, sequences, targets and moments."""
    rng = np.random.default_rng(0)
    truth = data.random_interactions(rng, SIZE, 1)
    x = data.sample(rng, SIZE, LENGTH, SEQUENCES)
    y = truth.targets(x)[..., 0]
    return truth, x, y, moments(x, y, SIZE)


HOW = {"step": 0.02, "steps": 1000, "checkpoints": 5}


@pytest.fixture(scope="module")
def path(world):
    """From the theorem's start, one-hot."""
    return follow(start(0.5, np.eye(SIZE)), world[3], **HOW)


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize(("length", "sequences"), [(1, 1), (5, 7)])
def test_a_step_of_euler_is_the_gradient_of_the_layers_loss(keys, length, sequences):
    """From any weights, with any targets and embeddings."""
    size = 3
    rng = np.random.default_rng(length)
    table = embeddings.random_orthogonal(rng, size)
    x = data.sample(rng, size, length, sequences)
    y = rng.normal(size=x.shape)
    weights = Weights(rng.normal(size=(size,) * (keys + 1)), rng.normal(size=(size,) * keys + (1,)))
    made = moments(x, y, size, keys)
    ((time, after),) = flow(weights, made, table, step=0.1, steps=1, checkpoints=1, method="euler", time=2.0)
    assert time == 2.1

    @jax.jit
    def loss(weights):
        return ((run(table[x], weights) - y) ** 2).sum(-1).mean()

    with jax.enable_x64(True):
        slope = jax.tree.map(np.asarray, jax.grad(loss)(weights))
    assert_close(after, jax.tree.map(lambda a, b: a - 0.1 * b, weights, slope), FLOAT64)


def test_the_path_keeps_its_promises(world, path):
    """Theorem 4.4: conservation, w >= b, the rate, zero error."""
    _, x, y, made = world
    (_, began), *points = path
    eye = np.eye(SIZE)
    first = squared_error(outputs(began, eye, x), y)
    promised = promise(began, first, made)
    measured = versatility(x, SIZE)
    assert measured.versatile
    assert made.smallest >= measured.squared_gap  # so the bound is at least as strong as the paper's
    assert promised.rate > 0.1
    assert promised.bound(0.0) == first
    for time, weights in points:
        # Runge-Kutta's error: a step of 0.02 against rates of some 1 to 10 leaves 2e-6.
        assert promised.drift(weights) < 1e-4
        assert weights.w.min() >= promised.smallest == 0.5
        assert squared_error(outputs(weights, eye, x), y) <= max(promised.bound(time), EXACT)
    assert squared_error(outputs(points[-1].weights, eye, x), y) < EXACT
    assert promised.bound(points[0].time) < first / 10


def test_where_the_path_ends(world, path):
    """In closed form from the conservation law and the target's transform; the drift is what is left."""
    truth = world[0]
    expected = limit(truth.f * truth.w[:, 0], 0.5)
    for got, want in zip(in_entities(path[-1][1]), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_no_error_in_training_is_no_error_at_other_lengths(world, path):
    """Theorems 4.6 and 4.8: any length, any law of the symbols."""
    truth, weights = world[0], path[-1][1]
    rng = np.random.default_rng(1)
    for length in LENGTHS:
        for law in (None, np.array([0.7, 0.2, 0.1, 0.0])):
            x = data.sample(rng, SIZE, length, 20, law)
            error = squared_error(outputs(weights, np.eye(SIZE), x), truth.targets(x)[..., 0])
            assert error < EXACT * length**3  # each of L outputs sums L errors


def test_other_starts_and_embeddings_learn_other_weights_and_the_same_transform(world, path):
    """Corollary 4.9."""
    truth, _, _, made = world
    rng = np.random.default_rng(2)
    target = truth.f[..., None] * truth.w
    table = embeddings.random_orthogonal(rng, SIZE)
    found = [Weights(*path[-1][1])]
    tables = [np.eye(SIZE), np.eye(SIZE), table]
    for initial, basis in ((rng.uniform(0.5, 2, SIZE), tables[1]), (1.5, tables[2])):
        *_, (_, weights) = flow(start(initial, basis), made, basis, **HOW)
        found.append(weights)
    for weights, basis in zip(found, tables, strict=True):
        assert gap(transform(basis, *weights), target).largest < 1e-10
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert gap(found[first].c, found[second].c).mean_square > 1e-3


def test_without_versatile_data_no_length_is_promised():
    """Entities that are all distinct (remark D.1): fitted at the length of training, wrong at others."""
    rng = np.random.default_rng(3)
    size, length = 5, 3
    truth = data.random_interactions(rng, size, 1)
    x = np.stack([rng.permutation(size)[:length] for _ in range(300)])
    y = truth.targets(x)[..., 0]
    measured = versatility(x, size)
    assert (measured.ranks == size - 1).all()
    made = moments(x, y, size)
    began = start(0.5, np.eye(size))
    promised = promise(began, 1.0, made)
    assert promised.rate < 1e-12
    *_, (_, weights) = flow(began, made, step=0.02, steps=1500, checkpoints=1)
    assert squared_error(outputs(weights, np.eye(size), x), y) < 1e-10
    longer = data.sample(rng, size, 2 * length, 50)
    assert squared_error(outputs(weights, np.eye(size), longer), truth.targets(longer)[..., 0]) > 0.1


@pytest.mark.parametrize(
    ("size", "sequences", "step", "steps"),
    [(3, 300, 0.002, 10000), pytest.param(4, 600, 0.002, 16000, marks=pytest.mark.slow)],
)
def test_hyper_attention_of_order_three(size, sequences, step, steps):
    """Theorem G.7, and beyond it: what is learned holds at other lengths."""
    rng = np.random.default_rng(0)
    table = np.eye(size)
    truth = Weights(rng.normal(size=(size,) * 3), rng.normal(size=(size, size, 1)))
    x = data.sample(rng, size, LENGTH, sequences)
    y = outputs(truth, table, x)
    made = moments(x, y, size, keys=2)
    measured = versatility(x, size, keys=2)
    assert measured.versatile
    assert made.smallest >= measured.squared_gap
    began = start(1.0, table, keys=2)
    promised = promise(began, squared_error(outputs(began, table, x), y), made)
    for time, weights in flow(began, made, step=step, steps=steps, checkpoints=4):
        assert promised.drift(weights) < 1e-4
        assert weights.w.min() >= promised.smallest == 1.0
        assert squared_error(outputs(weights, table, x), y) <= promised.bound(time)
    assert squared_error(outputs(weights, table, x), y) < 1e-14
    assert gap(transform(table, *weights), transform(table, *truth)).largest < 1e-8
    for length in (1, 2, 9):
        longer = data.sample(rng, size, length, 20)
        np.testing.assert_allclose(outputs(weights, table, longer), outputs(truth, table, longer), atol=1e-6)


def test_starts_and_targets_that_the_theorems_do_not_cover(world):
    made = world[3]
    with pytest.raises(ValueError, match=r"initial = 0\.0: expected positive"):
        start(np.array([1.0, 0.0]), np.eye(2))
    began = start(0.5, np.eye(SIZE))
    with pytest.raises(ValueError, match=r"weights\.c"):
        promise(began._replace(c=np.ones((SIZE, SIZE))), 1.0, made)
    with pytest.raises(ValueError, match="a positive number"):
        promise(began._replace(w=-began.w), 1.0, made)
    with pytest.raises(ValueError, match="a shorter step"), np.errstate(all="ignore"):
        list(flow(began, made, **{**HOW, "step": 100.0}))
