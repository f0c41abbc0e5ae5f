"""Queries and keys whose scores have a known conv basis (Gu et al., "Conv-Basis"), in NumPy float64.

Column j of the lower triangle of q k^T, read downwards from its diagonal entry, equals the kernel of j's
segment. `ConvCase.starts` are the first columns of the segments, counted from 0. The scores are q . k without
a factor.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from based_jax import ops


@dataclass(frozen=True)
class ConvCase:
    """One text and what a search should find in it."""

    q: np.ndarray
    """(N, K)"""
    k: np.ndarray
    """(N, K)"""
    starts: np.ndarray
    """(terms,) int32, increasing; the first is 0"""
    anchors: np.ndarray
    """(terms, N): the segments' kernels by lag, c_r[l] = score(starts[r] + l, starts[r]); 0 after the end"""

    @property
    def kernels(self) -> np.ndarray:
        """(terms, N), the paper's b_r: sums of the first r of them are the anchors, up to lag m_r - 1."""
        differences = self.anchors.copy()
        differences[1:] -= self.anchors[:-1]
        return np.where(np.arange(len(self.q)) < self.sizes[:, None], differences, 0)

    @property
    def sizes(self) -> np.ndarray:
        """(terms,), the paper's m_r = N - starts[r]."""
        return len(self.q) - self.starts

    @property
    def scores(self) -> np.ndarray:
        """(N, N), the lower triangle of q k^T."""
        return np.tril(self.q @ self.k.T)

    def separation(self, width: int) -> float:
        """The paper's delta (section 4) for the first `width` lags."""
        return separation(self.kernels, width)

    def batched(self, batch: int = 1, heads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """q and k as the ops take them, (B, N, H, K), all rows and heads equal."""
        shape = (batch, len(self.q), heads, self.q.shape[1])
        q, k = (np.broadcast_to(x[None, :, None], shape).copy() for x in (self.q, self.k))
        return q, k


def separation(kernels: np.ndarray, width: int) -> float:
    """The smallest L1 norm, over the first `width` lags, of a sum of neighbouring kernels b_j ... b_i."""
    terms = range(len(kernels))
    return min(np.abs(kernels[j : i + 1, :width].sum(axis=0)).sum() for i in terms for j in range(i + 1))


def dense_conv(kernel: np.ndarray, size: int | None = None) -> np.ndarray:
    """conv(a, m): a_{i-j} in the last m rows and columns where i >= j, otherwise 0."""
    length = len(kernel)
    matrix = np.zeros((length, length))
    for j in range(length - (length if size is None else size), length):
        matrix[j:, j] = kernel[: length - j]
    return matrix


def full_rank(
    length: int, starts: Sequence[int], seed: int = 0, *, scale: float = 1.0, noise: float = 0.0
) -> ConvCase:
    """k the unit matrix and q the scores: any lower triangle can be had. Random kernels, `scale` their size.

    `noise`: as much is added to the scores or taken from them, entry by entry; the starts and anchors
    returned are those without it.
    """
    rng = np.random.default_rng(seed)
    starts = np.asarray(starts, np.int32)
    kernels = rng.normal(size=(len(starts), length)) * scale
    kernels *= np.arange(length) < (length - starts)[:, None]
    scores = sum(dense_conv(b, length - s) for b, s in zip(kernels, starts, strict=True))
    q = scores + noise * np.tril(rng.choice([-1.0, 1.0], size=scores.shape))
    anchors = np.stack([np.append(scores[s:, s], np.zeros(s)) for s in starts])
    return ConvCase(q, np.eye(length), starts, anchors)


def piecewise_rope(
    length: int, width: int, starts: Sequence[int], seed: int = 0, *, scale: float = 1.0
) -> ConvCase:
    """Rotary embeddings of one query and of one key per segment, in few (an even number of) dimensions K.

    q_i = R^i q and k_j = R^j kappa_seg(j), so that q_i . k_j = q . R^(j - i) kappa_seg(j).
    """
    rng = np.random.default_rng(seed)
    starts = np.asarray(starts, np.int32)
    turns = np.exp(1j * 10000.0 ** (-np.arange(0, width, 2) / width))
    query = scale * rng.normal(size=(width // 2, 2)) @ [1, 1j]
    keys = rng.normal(size=(len(starts), width // 2, 2)) @ [1, 1j]
    powers = turns ** np.arange(length)[:, None]  # (N, K / 2)
    segment = np.searchsorted(starts, np.arange(length), side="right") - 1
    q, k = (
        np.stack([x.real, x.imag], axis=-1).reshape(length, width)
        for x in (powers * query, powers * keys[segment])
    )
    kernels = np.real(np.einsum("lk,k,rk->rl", powers, query, keys.conj()))
    return ConvCase(q, k, starts, np.where(np.arange(length) < (length - starts)[:, None], kernels, 0))


def degenerate(length: int = 64) -> ConvCase:
    """Kernels g, g + e, g from columns 0, 14, 20: b_3 = -b_2, so delta = 0 and a binary search fails."""
    rng = np.random.default_rng(0)
    g, e = rng.normal(size=(2, length))
    starts = np.array([0, 14, 20], np.int32)
    anchors = np.where(np.arange(length) < (length - starts)[:, None], [g, g + e, g], 0)
    scores = np.zeros((length, length))
    for j in range(length):
        row = np.searchsorted(starts, j, side="right") - 1
        scores[j:, j] = anchors[row, : length - j]
    return ConvCase(scores, np.eye(length), starts, anchors)


STATIC = ("num_bases", "starts", "scale", "gradient", "return_state", "implementation")
_attend = functools.partial(jax.jit, static_argnames=STATIC)(ops.conv_attention)


def attend(*arrays, **how):
    """In NumPy, where a slice compiles nothing."""
    return jax.tree.map(np.asarray, _attend(*arrays, **how))


def softmax(scores, v):
    """Causal attention with these scores, (N, N) and (N, V)."""
    weights = np.exp(scores - np.where(np.tri(len(v), dtype=bool), scores, -np.inf).max(1, keepdims=True))
    weights = np.where(np.tri(len(v), dtype=bool), weights, 0)
    return weights @ v / weights.sum(1, keepdims=True)


def in_one_head(*arrays):
    return [np.asarray(x)[None, :, None] for x in arrays]
