"""Embeddings: inner products, and where the vectors of pairs and tuples lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.embeddings import (
    concatenated,
    one_hot,
    product,
    random_orthogonal,
    sinusoidal,
)
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close


@given(draw.seeds, st.integers(1, 12))
def test_orthonormal_tables(seed, half):
    rng = np.random.default_rng(seed)
    tables = [one_hot(half), random_orthogonal(rng, half), sinusoidal(2 * half)]
    for table in [*tables, product(tables[1], tables[2])]:
        assert_close(table @ table.T, np.eye(len(table)), FLOAT64)
    raw = sinusoidal(2 * half, orthonormal=False)
    assert_close(raw @ raw.T, half * np.eye(2 * half), FLOAT64)


def test_sinusoidal_columns():
    """In the paper's order; with its 1/sqrt(2) on the last pair's cosine rows are not orthogonal."""
    table = sinusoidal(8, orthonormal=False)
    a = np.arange(8)
    columns = [np.full(8, 0.5**0.5)]
    for k in (1, 2, 3):
        columns += [np.sin(2 * np.pi * k * a / 8), np.cos(2 * np.pi * k * a / 8)]
    columns.append(0.5**0.5 * np.cos(np.pi * a))
    assert_close(table, np.stack(columns, axis=1), FLOAT64)
    table[:, 6] /= 2**0.5
    gram = table @ table.T
    assert np.abs(gram - np.diag(np.diag(gram))).max() > 0.4


def test_random_bases_differ_and_take_either_orientation():
    rng = np.random.default_rng(0)
    tables = [random_orthogonal(rng, 3) for _ in range(8)]
    assert np.abs(tables[0] - tables[1]).max() > 0.1
    assert {round(np.linalg.det(table)) for table in tables} == {-1, 1}


def test_pairs_and_tuples_are_coded_alike():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=shape) for shape in [(2, 3), (3, 1), (4, 2)]]
    pairs, tuples = product(tables[0], tables[1]), concatenated(*tables)
    assert tuples.shape == (24, 6)
    for a, b, c in np.ndindex(2, 3, 4):
        symbol = np.ravel_multi_index((a, b, c), (2, 3, 4))
        rows = [table[row] for table, row in zip(tables, (a, b, c), strict=True)]
        assert_close(tuples[symbol], np.concatenate(rows), FLOAT64)
        assert_close(pairs[3 * a + b], np.kron(tables[0][a], tables[1][b]), FLOAT64)
    assert concatenated(tables[0]) is tables[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: one_hot(0), ValueError, "size = 0"),
        (lambda: sinusoidal(7), ValueError, "size = 7: expected an even number"),
        (lambda: random_orthogonal(np.random.default_rng(0), -1), ValueError, "size = -1"),
        (lambda: product(np.ones(2), np.eye(2)), ValueError, "first has shape"),
        (lambda: concatenated(), ValueError, "at least one table"),
        (lambda: concatenated(np.eye(2), np.eye(2, dtype=int)), TypeError, r"tables\[1\] has dtype"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()
