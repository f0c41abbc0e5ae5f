"""Embeddings: inner products, and where the vectors of pairs and tuples lie."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.embeddings import (
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
