"""The conv basis of a matrix: unique, minimal, exponentiated; and the inputs for which the paper knows it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from tests.ops import draw
from tests.ops.conv_basis.conv_basis_cases import (
    circulant,
    degenerate,
    dense_conv,
    full_rank,
    orthonormal,
    piecewise_rope,
    spread_starts,
)

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
    matrix = ops.conv_matrix(anchors, starts)
    kernels, sizes = ops.conv_decompose(matrix)
    length = len(matrix)
    assert sizes.tolist() == (length - starts).tolist()
    assert off(ops.conv_assemble(kernels, sizes), matrix) < EXACT
    assert off(added_up(kernels, sizes), matrix) < EXACT
    for start, end, anchor in zip(starts, [*starts[1:], length], anchors, strict=True):
        for j in range(start, end):
            assert matrix[j:, j].tolist() == anchor[: length - j].tolist()
    assert not matrix[:, : starts[0]].any()
    assert not np.triu(matrix, 1).any()


def test_no_basis_has_fewer_terms():
    """Of all 0/1 matrices of four columns, against all sets of sizes and all kernels, by least squares."""
    lower = np.tril_indices(4)
    matrices = np.array(list(itertools.product([0.0, 1.0], repeat=10)))[1:]
    fewest = np.full(len(matrices), 4)
    for terms in (3, 2, 1):
        for sizes in itertools.combinations((4, 3, 2, 1), terms):
            spanned = np.array([dense_conv(unit, m)[lower] for m in sizes for unit in np.eye(4)[:m]])
            left = matrices - matrices @ np.linalg.pinv(spanned) @ spanned
            fewest[np.abs(left).max(axis=1) < 1e-9] = terms
    for entries, terms in zip(matrices, fewest, strict=True):
        matrix = np.zeros((4, 4))
        matrix[lower] = entries
        assert len(ops.conv_decompose(matrix)[1]) == terms


@given(segments(), st.sampled_from([0.1, 1.0]))
def test_a_tolerance_bounds_the_error(drawn, tolerance):
    """With fewer terms, no entry is further off."""
    matrix = ops.conv_matrix(*drawn)
    matrix[-1, 0] = 2.0  # larger than either
    kernels, sizes = ops.conv_decompose(matrix, tolerance)
    assert len(sizes) <= len(ops.conv_decompose(matrix)[1])
    assert off(ops.conv_assemble(kernels, sizes), matrix) <= tolerance + EXACT


def test_noise_within_the_tolerance_costs_no_terms():
    case = full_rank(20, [0, 6, 13], seed=1, noise=1e-3)
    _, sizes = ops.conv_decompose(case.scores, tolerance=2.1e-3)  # two entries differ by 2e-3
    assert sizes.tolist() == case.sizes.tolist()
    assert len(ops.conv_decompose(case.scores)[1]) > 10


def test_a_basis_is_not_a_rank():
    """One term may have any rank: that of conv(e_j) is N - j + 1 (claim 3.6 has j). Terms add (claim 3.8)."""
    for j in range(1, 6):
        matrix = dense_conv(np.eye(5)[j - 1])
        assert np.linalg.matrix_rank(matrix) == 5 - j + 1
        assert ops.conv_decompose(matrix)[1].tolist() == [5]
    a, b = np.random.default_rng(0).normal(size=(2, 5))
    assert off(dense_conv(a) + dense_conv(b), dense_conv(a + b)) < EXACT


@pytest.mark.parametrize("width", [1, 3, 4])
def test_separation(width):
    case = full_rank(20, [0, 6, 13], seed=2)
    assert ops.conv_separation(case.kernels, case.sizes, width) == pytest.approx(
        case.separation(width), abs=EXACT
    )


def test_separation_counts_every_earlier_segment():
    """One that returns is at distance 0 from itself, though its neighbours are far; so is one of zeros."""
    case = degenerate()
    assert ops.conv_separation(case.kernels, case.sizes, 4) < EXACT
    assert ops.conv_separation(case.kernels[:2], case.sizes[:2], 4) > 1
    assert ops.conv_separation(np.array([[0.0, 0, 1]]), [3], 2) == 0


@given(segments())
def test_exp(drawn):
    """Lemma A.13, for terms and for segments, where the first segment starts at column 0."""
    anchors, starts = drawn
    starts = starts - starts[0]
    matrix = ops.conv_matrix(anchors, starts)
    exact = np.tril(np.exp(matrix))
    kernels, sizes = ops.conv_decompose(matrix)
    assert off(ops.conv_assemble(ops.conv_exp(kernels, sizes), sizes), exact) <= EXACT * exact.max()
    assert off(ops.conv_matrix(np.exp(anchors), starts), exact) == 0


def test_exp_needs_a_first_term_of_all_columns():
    """exp(0) is 1: the lemma's kernels for a later first term are off by that."""
    case = full_rank(8, [2, 5])
    exponentials = np.exp(np.cumsum(case.kernels, axis=0))
    kernels = np.diff(exponentials, axis=0, prepend=0)
    assert off(added_up(kernels, case.sizes), np.tril(np.exp(case.scores))) == 1
    with pytest.raises(ValueError, match=r"sizes\[0\] = 6: expected N = 8, as exp\(0\) is 1"):
        ops.conv_exp(case.kernels, case.sizes)
    # One more term makes it right.
    kernels, sizes = np.concatenate([np.zeros((1, 8)), case.kernels]), np.append(8, case.sizes)
    exact = np.tril(np.exp(case.scores))
    assert off(added_up(ops.conv_exp(kernels, sizes), sizes), exact) < EXACT * exact.max()


def test_terms_of_exponentials_cancel():
    """Small entries are differences of large ones; segments, whose kernels are positive, have none."""
    case = full_rank(64, range(0, 64, 4), scale=2.0)
    lower = np.tril_indices(64)
    exact = np.exp(case.scores)[lower]
    by_terms = ops.conv_assemble(ops.conv_exp(case.kernels, case.sizes), case.sizes)[lower]
    by_segments = ops.conv_matrix(np.exp(case.anchors), case.starts)[lower]
    assert off(by_segments / exact, 1) < 1e-14
    assert off(by_terms / exact, 1) > 1e-9


@given(draw.seeds)
def test_masks_and_exponentials(seed):
    """Lemma A.14: the mask may be applied before. Lemma D.3: |e^a - e^b| = e^min(a, b) (e^|a - b| - 1)."""
    a, b = np.random.default_rng(seed).normal(size=(2, 5, 5))
    assert off(np.tril(np.exp(np.tril(a))), np.tril(np.exp(a))) == 0
    difference = np.exp(np.minimum(a, b)) * np.expm1(np.abs(a - b))
    assert off(np.abs(np.exp(a) - np.exp(b)), difference) < EXACT


@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_constant_norms_and_distances_by_lag_are_one_segment(width):
    """Lemmas A.20 and A.22: Toeplitz scores, and so are their exponentials. (One channel is a constant.)"""
    case = orthonormal(33, width, seed=width)
    index = np.arange(33)
    lag = np.abs(index[:, None] - index)
    distances = np.square(case.q[:, None] - case.q).sum(axis=-1)
    assert off(case.q @ case.k.T, case.anchors[0][lag]) < EXACT
    assert off(distances, 2 - 2 * case.anchors[0][lag]) < EXACT  # <z_i, z_j> = 1 - f / 2 (lemma A.25)
    for matrix in (case.scores, np.tril(np.exp(case.scores))):
        assert ops.conv_decompose(matrix, tolerance=EXACT)[1].tolist() == [33]


def test_projections_to_such_rows_are_one_segment():
    """Lemmas A.23 to A.25: W_Q W_K^T = A A^T, and rows x with x A as in lemma A.20."""
    case, rng = orthonormal(20, 4), np.random.default_rng(0)
    a = rng.normal(size=(4, 4)) + 3 * np.eye(4)
    x, w_q = case.q @ np.linalg.inv(a), rng.normal(size=(4, 4))
    w_k = (np.linalg.inv(w_q) @ a @ a.T).T
    scores = np.tril((x @ w_q) @ (x @ w_k).T)
    assert ops.conv_decompose(scores, tolerance=1e-12)[1].tolist() == [20]
    assert off(scores, case.scores) < 1e-12  # two inverses and four products


@pytest.mark.parametrize("theta", [0.0, 0.3, 2.0])
def test_turning_pairs(theta):
    """Lemmas A.18 and A.19: distances |e^(i (j - k) theta) - 1|^2 of complex numbers and of their pairs."""
    index = np.arange(12)
    numbers = np.exp(1j * theta * index)
    pairs = np.stack([numbers.real, numbers.imag], axis=1)
    turns = (index[:, None] - index) * theta
    expected = np.abs(np.exp(1j * turns) - 1) ** 2
    assert off(np.abs(numbers[:, None] - numbers) ** 2, expected) < EXACT
    assert off(np.square(pairs[:, None] - pairs).sum(axis=-1), expected) < EXACT
    assert off(2 - 2 * np.cos(turns), expected) < EXACT
    assert len(ops.conv_decompose(np.tril(pairs @ pairs.T), tolerance=EXACT)[1]) == 1


def test_circulant_scores():
    """Lemma A.21: the exponential is circulant, of full rank, and one segment, whatever the rank."""
    case = circulant(32, [0, 3, 5])
    scores = case.q @ case.k.T
    assert np.linalg.matrix_rank(scores) == 5
    index = (np.arange(32)[:, None] - np.arange(32)) % 32
    assert off(np.exp(scores), np.exp(scores[:, 0])[index]) < 1e-12  # of entries up to 12
    assert len(ops.conv_decompose(np.tril(np.exp(scores)), tolerance=1e-12)[1]) == 1


def test_rotary_keys_that_change_start_a_segment():
    """Of queries and keys that do not depend on the position, one rotary text has one segment."""
    rng = np.random.default_rng(0)
    for terms in (1, 4):
        case = piecewise_rope(40, 8, spread_starts(40, terms, 4, rng), seed=terms)
        assert ops.conv_decompose(case.scores, tolerance=1e-12)[1].tolist() == case.sizes.tolist()
        assert np.linalg.matrix_rank(case.q @ case.k.T) <= 8


ROUND = np.tril(np.ones((3, 3)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.conv_decompose(ROUND[:2]), ValueError, r"matrix has shape \(2, 3\): expected \(N, 2\)"),
        (lambda: ops.conv_decompose(3.0), ValueError, r"matrix has shape \(\)"),
        (lambda: ops.conv_decompose(0 * ROUND), ValueError, r"max \|matrix\| = 0.0: expected more than tol"),
        (lambda: ops.conv_decompose(ROUND.T), ValueError, "above the diagonal = 1.0: expected 0, a lower"),
        (lambda: ops.conv_decompose(ROUND, -1), ValueError, "tolerance = -1: expected at least 0"),
        (lambda: ops.conv_decompose(ROUND * np.nan), ValueError, "not finite = 9: expected 0"),
        (lambda: ops.conv_assemble(ROUND, [3, 3, 1]), ValueError, r"sizes = \[3, 3, 1\]: expected N = 3 >="),
        (lambda: ops.conv_assemble(ROUND, [4, 3, 1]), ValueError, r"sizes = \[4, 3, 1\]: expected N = 3 >="),
        (lambda: ops.conv_assemble(ROUND, [3, 2]), ValueError, r"sizes has shape \(2,\): expected \(3,\)"),
        (lambda: ops.conv_assemble(ROUND, [3.0, 2, 1]), TypeError, "sizes has dtype float64"),
        (lambda: ops.conv_matrix(ROUND, [0, 2, 1]), ValueError, r"starts = \[0, 2, 1\]: expected increasing"),
        (lambda: ops.conv_separation(ROUND, [3, 2, 1], 2), ValueError, "width = 2: expected 1 to 1"),
        (lambda: ops.conv_separation(ROUND, [3, 2, 1], 0), ValueError, "width = 0: expected 1 to 1"),
    ],
)
def test_errors_name_the_argument(unchecked, call, error, message):
    with pytest.raises(error, match=message):
        call()
