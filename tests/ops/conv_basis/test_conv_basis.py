"""The conv basis of a matrix: unique, minimal, exponentiated; and the inputs for which the paper knows it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops import conv_basis
from tests.ops import draw
from tests.ops.conv_basis.conv_basis_cases import degenerate, dense_conv, full_rank, piecewise_rope

EXACT = 1e-13
"""Sums and differences of tens of float64 numbers of order 1, or their exponentials."""

CASES = {
    "one token": full_rank(1, [0]),
    "one segment": full_rank(9, [0]),
    "segments of one column": full_rank(9, [0, 1, 2, 8]),
    "few dimensions": piecewise_rope(24, 8, [0, 9, 15]),
    "a kernel that returns": degenerate(),
}


@st.composite
def segments(draw_):
    """Anchors and starts of a random lower triangle, perhaps with zero columns before the first."""
    rng = np.random.default_rng(draw_(draw.seeds))
    length = draw_(st.integers(1, 12))
    starts = sorted(draw_(st.sets(st.integers(0, length - 1), min_size=1)))
    anchors = rng.normal(size=(len(starts), length))
    return anchors * (np.arange(length) < length - np.array(starts)[:, None]), np.array(starts)


def off(actual, expected):
    return np.abs(actual - expected).max()


def added_up(kernels, sizes):
    """The sum of terms as it is written."""
    return sum(dense_conv(b, m) for b, m in zip(kernels, sizes, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_known_basis_is_found(name):
    case = CASES[name]
    kernels, sizes = ops.conv_decompose(case.scores, tolerance=EXACT)
    assert sizes.tolist() == case.sizes.tolist()
    assert off(kernels, case.kernels) < EXACT
    assert off(added_up(kernels, sizes), case.scores) < EXACT


@given(segments())
def test_terms_and_segments_are_one_matrix(drawn):
    """Lemma A.11; and any lower triangle is its basis, which has no more terms than columns."""
    anchors, starts = drawn
    matrix = conv_basis.conv_matrix(anchors, starts)
    kernels, sizes = ops.conv_decompose(matrix)
    length = len(matrix)
    assert sizes.tolist() == (length - starts).tolist()
    assert off(conv_basis.conv_assemble(kernels, sizes), matrix) < EXACT
    assert off(added_up(kernels, sizes), matrix) < EXACT
    for start, end, anchor in zip(starts, [*starts[1:], length], anchors, strict=True):
        for j in range(start, end):
            assert matrix[j:, j].tolist() == anchor[: length - j].tolist()
    assert not matrix[:, : starts[0]].any()
    assert not np.triu(matrix, 1).any()


@given(segments(), st.sampled_from([0.1, 1.0]))
def test_a_tolerance_bounds_the_error(drawn, tolerance):
    """With fewer terms, no entry is further off."""
    matrix = conv_basis.conv_matrix(*drawn)
    matrix[-1, 0] = 2.0  # larger than either
    kernels, sizes = ops.conv_decompose(matrix, tolerance)
    assert len(sizes) <= len(ops.conv_decompose(matrix)[1])
    assert off(conv_basis.conv_assemble(kernels, sizes), matrix) <= tolerance + EXACT


@pytest.mark.parametrize("width", [1, 3, 4])
def test_separation(width):
    case = full_rank(20, [0, 6, 13], seed=2)
    assert conv_basis.conv_separation(case.kernels, case.sizes, width) == pytest.approx(
        case.separation(width), abs=EXACT
    )


def test_separation_counts_every_earlier_segment():
    """One that returns is at distance 0 from itself, though its neighbours are far; so is one of zeros."""
    case = degenerate()
    assert conv_basis.conv_separation(case.kernels, case.sizes, 4) < EXACT
    assert conv_basis.conv_separation(case.kernels[:2], case.sizes[:2], 4) > 1
    assert conv_basis.conv_separation(np.array([[0.0, 0, 1]]), [3], 2) == 0


@given(segments())
def test_exp(drawn):
    """Lemma A.13, for terms and for segments, where the first segment starts at column 0."""
    anchors, starts = drawn
    starts = starts - starts[0]
    matrix = conv_basis.conv_matrix(anchors, starts)
    exact = np.tril(np.exp(matrix))
    kernels, sizes = ops.conv_decompose(matrix)
    assert (
        off(conv_basis.conv_assemble(conv_basis.conv_exp(kernels, sizes), sizes), exact)
        <= EXACT * exact.max()
    )
    assert off(conv_basis.conv_matrix(np.exp(anchors), starts), exact) == 0
