"""The transform: the same for the same function only; the bias that one length cannot show."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.constructions import change_basis, exact
from papers.hyper_self_attention.interactions.data import Interactions, counts, random_interactions, sample
from papers.hyper_self_attention.interactions.embeddings import one_hot, random_orthogonal
from papers.hyper_self_attention.interactions.transform import (
    gap,
    length_bias,
    length_bias_effect,
    on_axes,
    transform,
)
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close


@given(draw.seeds, st.integers(1, 5), st.integers(1, 4), st.integers(2, 4))
def test_entries_are_forms_of_the_vectors(seed, size, width, axes):
    """T[a, b, ..., k] = C[x_a, x_b, ...] W[x_b, ...]_k, spelled out at one index."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(size, width))
    c, w = rng.normal(size=(width,) * axes), rng.normal(size=(width,) * (axes - 1) + (2,))
    index = tuple(rng.integers(size, size=axes))
    score, value = c, w
    for symbol in index:
        score = np.tensordot(table[symbol], score, (0, 0))
    for symbol in index[1:]:
        value = np.tensordot(table[symbol], value, (0, 0))
    result = transform(table, c, w)
    assert result.shape == (size,) * axes + (2,)
    assert_close(result[index], score * value, FLOAT64)


@given(draw.seeds, st.integers(1, 6))
def test_equal_for_equal_functions_only(seed, size):
    """Another basis or another split between C and W leaves T and targets alone; a change of f does not."""
    rng = np.random.default_rng(seed)
    truth = random_interactions(rng, size, 2)
    table, q = random_orthogonal(rng, size), random_orthogonal(rng, size)
    weights = exact(truth.f, truth.w, table)
    wanted = truth.f[..., None] * truth.w
    assert_close(transform(table, *weights), wanted, FLOAT64)
    assert_close(transform(table @ q.T, *change_basis(weights, q)), wanted, FLOAT64, "another basis")
    split = rng.uniform(0.5, 2, size=size)
    assert_close(transform(one_hot(size), truth.f / split, truth.w * split[:, None]), wanted, FLOAT64)
    changed = Interactions(truth.f + np.eye(size), truth.w)
    assert gap(transform(one_hot(size), changed.f, changed.w), wanted).largest > 1e-3
    assert np.abs(changed.targets(np.arange(size)) - truth.targets(np.arange(size))).max() > 1e-3


def test_sums_of_the_transform_are_not_enough():
    """Corollary 4.9 prints T summed over the acting entity: equal sums, different outputs."""
    w = np.ones((2, 1))
    first = Interactions(np.array([[1.0, 2.0], [3.0, 4.0]]), w)
    second = Interactions(np.array([[2.0, 1.0], [4.0, 3.0]]), w)
    tables = [transform(one_hot(2), layer.f, layer.w) for layer in (first, second)]
    assert_close(tables[0].sum(axis=1), tables[1].sum(axis=1), FLOAT64)
    assert gap(*tables) == (1.0, 1.0)
    x = np.array([0, 0, 1])
    assert first.targets(x)[:, 0].tolist() == [4, 4, 10]
    assert second.targets(x)[:, 0].tolist() == [5, 5, 11]


def test_a_bias_that_one_length_of_distinct_entities_cannot_show():
    """Invisible at the trained length, strength (trained - L) / (trained - 1) at another (section 4.3)."""
    rng = np.random.default_rng(0)
    size, trained, strength = 9, 5, 1.7
    truth = Interactions(rng.normal(size=(size, size)), np.ones((size, 1)))
    biased = Interactions(truth.f + length_bias(size, trained, strength), truth.w)
    for length in range(1, size + 1):
        x = np.stack([rng.permutation(size)[:length] for _ in range(20)])
        effect = length_bias_effect(strength, trained, length)
        expected = np.full((20, length, 1), effect)
        assert (effect == 0) == (length == trained)
        assert_close(biased.targets(x) - truth.targets(x), expected, FLOAT64, f"length {length}")
    repeated = sample(rng, size, trained, 20)
    repeated = repeated[counts(repeated, size).max(axis=-1) > 1]
    assert (np.abs(biased.targets(repeated) - truth.targets(repeated)).max(axis=(1, 2)) > 0.1).all()


def test_gap():
    assert gap(np.array([[1.0, 2.0]]), np.array([[1.0, 5.0]])) == (4.5, 3.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: transform(np.eye(2), np.ones(2), np.ones((2, 1))), "c.ndim = 1"),
        (lambda: transform(np.eye(2), np.eye(3), np.ones((2, 1))), "c has shape"),
        (lambda: transform(np.eye(2), np.eye(2), np.ones(2)), "w has shape"),
        (lambda: gap(np.ones((2, 2)), np.ones(2)), "second has shape"),
        (lambda: length_bias(4, 5, 1.0), "length = 5: expected 2 to size = 4"),
        (lambda: length_bias_effect(1.0, 1, 2), "trained = 1"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_on_axes_leaves_the_rest():
    matrix, tensor = np.arange(6.0).reshape(2, 3), np.arange(36.0).reshape(3, 3, 4)
    assert_close(on_axes(matrix, tensor, 2), np.einsum("ai,bj,ijk->abk", matrix, matrix, tensor), FLOAT64)
    assert on_axes(matrix, tensor, 0).shape == tensor.shape
