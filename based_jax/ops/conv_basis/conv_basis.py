"""Conv basis of a matrix: a lower triangle as a sum of few convolution matrices, in NumPy float64.

A lower-triangular matrix H is read by column and lag, H[j + l, j]. Neighbouring columns that are equal as
functions of the lag l form a segment, and k segments make a k-conv basis (Gu et al. 2024, "Conv-Basis",
section 3), written in two forms:

    H = sum_r conv(b_r, m_r),  N >= m_1 > ... > m_k >= 1        terms: kernels b_r and sizes m_r
    H[j + l, j] = c_r[l]  where  s_r <= j < s_{r+1}             segments: anchors c_r and starts s_r

with c_r = b_1 + ... + b_r and s_r = N - m_r, counted from 0: the anchor c_r is H's own column s_r. Entries
that neither form uses, at lags from m_r on, are 0. `conv_recovery` finds the segments of scores q k^T
without forming the scores.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from based_jax.validate import expect, expect_array

Matrix = NDArray[Any]


def conv_decompose(matrix: Any, tolerance: float = 0.0) -> tuple[Matrix, Matrix]:
    """Return the conv basis of a matrix, found column by column (lemma D.1).

    A term begins at each column that differs from the prediction of the terms so far. With `tolerance` 0 no
    basis has fewer terms: there is one per column j with H[j:, j] != H[j-1:N-1, j-1].

    Args:
        matrix: (N, N), lower-triangular and not 0.
        tolerance: a column whose entries differ by at most this joins the segment before it.

    Returns:
        kernels (k, N) and sizes (k,), decreasing. No entry of ``conv_assemble(kernels, sizes)`` differs from
        the matrix by more than `tolerance`, rounding aside.

    Raises:
        ValueError: not square, not finite, an entry above the diagonal, or nothing to decompose.
    """
    matrix = np.asarray(matrix, np.float64)
    expect_array("matrix", matrix, ("N", matrix.shape[0] if matrix.ndim else "N"))
    strange = int(np.count_nonzero(~np.isfinite(matrix)))
    expect(strange == 0, "entries of matrix that are not finite", strange, "0")
    above = float(np.abs(np.triu(matrix, 1)).max())
    expect(above == 0, "max |matrix| above the diagonal", above, "0, a lower-triangular matrix")
    expect(tolerance >= 0, "tolerance", tolerance, "at least 0")
    length = len(matrix)
    anchors: list[Matrix] = []
    sizes: list[int] = []
    anchor = np.zeros(length)
    for j in range(length):
        size = length - j
        if np.abs(matrix[j:, j] - anchor[:size]).max() > tolerance:
            anchor = np.append(matrix[j:, j], np.zeros(j))
            anchors.append(anchor)
            sizes.append(size)
    expect(len(sizes) > 0, "max |matrix|", float(np.abs(matrix).max()), f"more than tolerance = {tolerance}")
    return _terms(np.stack(anchors), np.array(sizes)), np.array(sizes)


def conv_assemble(kernels: Any, sizes: Any) -> Matrix:
    """Return the matrix sum_r conv(b_r, m_r) of these terms, (N, N), by its entries (lemma A.11).

    Args:
        kernels: (k, N).
        sizes: (k,) integers, N >= m_1 > ... > m_k >= 1.
    """
    kernels, sizes = _expect_terms(kernels, sizes)
    return conv_matrix(np.cumsum(kernels, axis=0), kernels.shape[1] - sizes)


def conv_matrix(anchors: Any, starts: Any) -> Matrix:
    """Return the lower-triangular matrix H[j + l, j] = c_r[l] of these segments, (N, N); 0 before the first.

    Args:
        anchors: (k, N); entries from lag N - s_r on are ignored.
        starts: (k,) integers, increasing; segments that start at N (`conv_recover`) are empty.
    """
    anchors, starts = np.asarray(anchors, np.float64), np.asarray(starts)
    expect_array("anchors", anchors, ("k", "N"))
    terms, length = len(anchors), len(anchors.T)
    expect_array("starts", starts, (terms,), "integer")
    rising = (np.diff(starts) > 0) | (starts[1:] == length)
    inside = starts[0] >= 0 and starts[-1] <= length
    expect(bool(inside and rising.all()), "starts", starts.tolist(), f"increasing from 0 or more to {length}")
    segment = np.searchsorted(starts, np.arange(length), side="right") - 1
    lag = np.arange(length)[:, None] - np.arange(length)
    return np.where((lag >= 0) & (segment >= 0), anchors[segment, np.maximum(lag, 0)], 0)


def conv_separation(kernels: Any, sizes: Any, width: int) -> float:
    """Return the largest delta for which a basis is (T, delta)-non-degenerate, T = `width` (section 4).

    Over the first T lags, the anchor of each segment differs by at least delta, in the sum of magnitudes,
    from the anchor of every earlier one, and from 0. The probes of a binary search for the next start are
    then monotone. Scores may have errors of eps <= delta / (5 T), which makes them eps-close to the basis; a
    threshold from 2 T eps to delta - 2 T eps, such as delta / 2, then finds every start. At delta itself the
    result depends on rounding.

    Args:
        kernels, sizes: terms, as from `conv_decompose`.
        width: T, from 1 to the smallest size.
    """
    kernels, sizes = _expect_terms(kernels, sizes)
    expect(1 <= width <= sizes[-1], "width", width, f"1 to {sizes[-1]}, the smallest of sizes")
    anchors = np.cumsum(kernels[:, :width], axis=0)
    earlier = np.concatenate([np.zeros((1, width)), anchors])
    return min(float(np.abs(c - earlier[: r + 1]).sum(axis=1).min()) for r, c in enumerate(anchors))


def conv_exp(kernels: Any, sizes: Any) -> Matrix:
    """Return the terms of the lower triangle of exp(H), same sizes: exp(c_r) - exp(c_{r-1}) (lemma A.13).

    The segment form needs no differences and has no negative kernels: the anchors of exp(H) are exp(c_r).

    Args:
        kernels, sizes: terms of H, as from `conv_decompose`. The first size must be N, since exp(0) = 1.

    Returns:
        kernels (k, N).
    """
    kernels, sizes = _expect_terms(kernels, sizes)
    expect(sizes[0] == kernels.shape[1], "sizes[0]", int(sizes[0]), f"N = {kernels.shape[1]}, as exp(0) is 1")
    return _terms(np.exp(np.cumsum(kernels, axis=0)), sizes)


def _terms(anchors: Matrix, sizes: Matrix) -> Matrix:
    """Return the differences b_r of neighbouring anchors, at the lags below m_r."""
    kernels = np.diff(anchors, axis=0, prepend=0)
    return np.where(np.arange(len(kernels.T)) < sizes[:, None], kernels, 0)


def _expect_terms(kernels: Any, sizes: Any) -> tuple[Matrix, Matrix]:
    kernels, sizes = np.asarray(kernels, np.float64), np.asarray(sizes)
    expect_array("kernels", kernels, ("k", "N"))
    expect_array("sizes", sizes, (len(kernels),), "integer")
    falling = bool((np.diff(sizes) < 0).all() and sizes[-1] >= 1 and sizes[0] <= kernels.shape[1])
    expect(falling, "sizes", sizes.tolist(), f"N = {kernels.shape[1]} >= m_1 > ... > m_k >= 1")
    return kernels, sizes
