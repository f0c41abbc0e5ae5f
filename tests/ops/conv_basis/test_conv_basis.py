"""Conv bases: of a matrix unique and minimal; of scores found where the paper promises it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops import conv_basis
from based_jax.ops.conv_basis.conv_basis import COLUMNS, SEARCHES
from tests.arrays import array
from tests.ops import draw
from tests.ops.conv_basis.conv_basis_cases import degenerate, dense_conv, full_rank, piecewise_rope
from tests.tolerances import BFLOAT16, assert_close

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
    assert off(added_up(kernels, sizes), matrix) < EXACT
    assert off(conv_basis.conv_matrix(np.cumsum(kernels, axis=0), starts), matrix) < EXACT
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
    assert off(added_up(kernels, sizes), matrix) <= tolerance + EXACT


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


ROWS, LENGTH, TERMS, WIDTH = 8, 40, 4, 4
"""One program for all laws: texts in as many rows, with as many channels as tokens"""


@functools.partial(jax.jit, static_argnames="search")
def recover(q, k, thresholds, counts, *, search="binary"):
    """Starts in the first tokens of texts (R, N, K), each with its own threshold."""

    def one(q, k, threshold, count):
        q, k, options = q[None, :, None], k[None, :, None], {"terms": TERMS, "width": WIDTH}
        mask = (jnp.arange(LENGTH) < count)[None]
        return conv_basis.conv_recover(q, k, threshold=threshold, search=search, mask=mask, **options)

    return jax.vmap(one)(q, k, thresholds, counts)[:, 0, 0]


def defined(scores, terms, width, threshold, search):
    """The starts by the definition of each search, column by column of the scores (N, N)."""
    length = len(scores)
    last = length - width
    window = [scores[j : j + width, j] for j in range(last + 1)]

    def differs(j, s):
        return np.abs(window[j] - window[s]).sum() >= threshold

    starts = [0]
    if search == "largest":
        differences = {j: scores[j:, j] - scores[j - 1 : -1, j - 1] for j in range(1, length)}
        changes = {j: np.abs(column[:width]).sum() for j, column in differences.items()}
        order = sorted(changes, key=lambda j: -changes[j])
        starts += sorted(j for j in order[: terms - 1] if changes[j] >= threshold)
    elif search == "binary":
        while len(starts) < terms:
            low, high = starts[-1] + 1, last
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if differs(middle, starts[-1]) else (middle + 1, high)
            starts.append(min(low, length))
    else:
        for j in range(last + 1):
            if j > starts[-1] and differs(j, starts[-1]):
                starts.append(j)
    return [0, *(s for s in starts[1:terms] if s < length)]


@pytest.mark.parametrize("search", SEARCHES)
def test_the_definition(search):
    """On any scores, whether they have a basis or not, of texts that end anywhere."""

    @given(draw.seeds, draw.counts(ROWS, LENGTH))
    @settings(max_examples=5)
    def law(seed, counts):
        rng = np.random.default_rng(seed)
        q, k = rng.normal(size=(2, ROWS, LENGTH, LENGTH))
        # Of windows whose differences are 22 +- 8: few starts, some, and many.
        k[:, 1:] = np.where(rng.random((ROWS, LENGTH - 1, 1)) < 0.5, k[:, 1:], k[:, :-1])
        thresholds = rng.uniform(0, 60, ROWS)
        with jax.enable_x64(True):
            starts = recover(q, k, thresholds, counts, search=search)
        for row, count in enumerate(counts):
            scores = q[row, :count] @ k[row, :count].T
            expected = defined(scores, TERMS, WIDTH, thresholds[row], search)
            assert starts[row].tolist() == expected + [LENGTH] * (TERMS - len(expected))

    law()


def test_rows_and_heads_are_apart():
    """A batch of different texts, each as it is alone; scores of bfloat16 inputs are in float32."""
    cases = [full_rank(12, [0, first, 6 + first], seed=first) for first in range(1, 5)]
    q, k = (np.stack([getattr(case, name) for case in cases]) for name in "qk")
    q, k = (array(x.reshape(2, 2, 12, 12).swapaxes(1, 2), jnp.bfloat16) for x in (q, k))
    threshold = min(case.separation(2) for case in cases) / 2
    starts = conv_basis.conv_recover(q, k, terms=3, width=2, threshold=threshold)
    error = conv_basis.conv_score_error(q, k, starts)
    assert error.dtype == jnp.float32
    for row, head in np.ndindex(2, 2):
        case = cases[2 * row + head]
        assert starts[row, head].tolist() == case.starts.tolist()
        assert_close(error[row, head], 0, BFLOAT16)


@pytest.mark.parametrize("length", [7, COLUMNS + 21])
def test_score_error(length):
    """Against the dense matrices, for fewer and more columns than a block has; of texts that end earlier."""
    rng = np.random.default_rng(length)
    q, k = rng.normal(size=(2, 2, length, 2, 3))
    starts = np.sort(rng.choice(length, (2, 2, 3)), axis=-1).astype(np.int32)
    starts[..., 0] = 0
    counts = np.array([length, length // 2])
    with jax.enable_x64(True):
        error = conv_basis.conv_score_error(q, k, starts, np.arange(length) < counts[:, None])
    for row, head in np.ndindex(2, 2):
        scores = np.tril(q[row, :, head] @ k[row, :, head].T)
        own = np.unique(starts[row, head])
        anchors = np.stack([np.append(scores[s:, s], np.zeros(s)) for s in own])
        off = np.abs(scores - conv_basis.conv_matrix(anchors, own))
        assert error[row, head] == pytest.approx(off[: counts[row]].max(), abs=1e-12)
