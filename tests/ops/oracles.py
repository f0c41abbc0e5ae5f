"""The papers' formulas in NumPy float64, token by token: slow, short, and independent of the library.

Arrays are (batch, length, heads, dim). `counts` are the real tokens of each row: the others are not looked
at, and their outputs are 0. A row's tokens belong to segments: neighbours with different ids are in
different ones.
"""

import math
from typing import NamedTuple

import numpy as np


def taylor_features(x: np.ndarray) -> np.ndarray:
    """Full second-order map of (..., K), row-major."""
    width = x.shape[-1]
    square = np.einsum("...m,...n->...mn", x, x).reshape(*x.shape[:-1], width**2)
    return np.concatenate([np.ones_like(x[..., :1]), x / width**0.25, square / math.sqrt(2 * width)], axis=-1)


def symmetric_taylor_features(x: np.ndarray) -> np.ndarray:
    """Compact second-order map: constant, linear, squares, then the lower triangle by rows."""
    width = x.shape[-1]
    squares = [x[..., m] ** 2 / math.sqrt(2 * width) for m in range(width)]
    products = [x[..., m] * x[..., n] / math.sqrt(width) for m in range(width) for n in range(m)]
    linear = [x[..., m] / width**0.25 for m in range(width)]
    return np.stack([np.ones_like(x[..., 0]), *linear, *squares, *products], axis=-1)


class Sums(NamedTuple):
    """State of linear attention."""

    kv: np.ndarray
    k: np.ndarray
    length: np.ndarray
    start: np.ndarray
    segment: np.ndarray


def empty_sums(batch: int, heads: int, features: int, value_size: int) -> Sums:
    rows = np.zeros(batch, np.int32)
    return Sums(
        np.zeros((batch, heads, features, value_size)), np.zeros((batch, heads, features)), *[rows] * 3
    )


def linear_attention(
    phi_q, phi_k, v, *, log_decay=None, segment_ids=None, counts=None, state=None, eps: float | None = 1e-12
) -> tuple[np.ndarray, Sums]:
    """S_i = gamma_i S_{i-1} + phi(k_i) v_i^T and z_i = z_{i-1} + phi(k_i), read after writing."""
    batch, length, heads, features = phi_q.shape
    state = empty_sums(batch, heads, features, v.shape[-1]) if state is None else state
    fresh = state.length == 0
    kv, z, lengths, start, segment = (np.array(x) for x in state)
    y = np.zeros(v.shape)
    for row in range(batch):
        for t in range(length if counts is None else counts[row]):
            if segment_ids is not None:
                if segment_ids[row, t] != segment[row] and not (fresh[row] and t == 0):
                    kv[row], z[row], start[row] = 0, 0, lengths[row]
                segment[row] = segment_ids[row, t]
            if log_decay is not None:
                kv[row] *= np.exp(np.broadcast_to(log_decay, (batch, length, heads))[row, t])[:, None, None]
            kv[row] += phi_k[row, t][:, :, None] * v[row, t][:, None, :]
            z[row] += phi_k[row, t]
            lengths[row] += 1
            y[row, t] = np.einsum("hf,hfv->hv", phi_q[row, t], kv[row])
            if eps is not None:
                y[row, t] /= (np.einsum("hf,hf->h", phi_q[row, t], z[row]) + eps)[:, None]
    return y, Sums(kv, z, lengths, start, segment)


def segment_starts(ids) -> list[int]:
    """Index where each token's run of equal ids began."""
    starts = []
    for t, name in enumerate(ids):
        starts.append(t if t == 0 or name != ids[t - 1] else starts[-1])
    return starts


def softmax_attention(
    q, k, v, *, left=None, causal: bool = True, scale: float | None = None, segment_ids=None, counts=None
) -> np.ndarray:
    """A softmax over an explicit list of keys for each query."""
    batch, length, heads, width = q.shape
    shared = heads // k.shape[2]
    scale = 1 / math.sqrt(width) if scale is None else scale
    y = np.zeros((batch, length, heads, v.shape[-1]))
    for row in range(batch):
        count = length if counts is None else counts[row]
        starts = segment_starts(segment_ids[row][:count]) if segment_ids is not None else [0] * count
        for i in range(count):
            keys = [j for j in range(count) if starts[j] == starts[i]]
            if causal:
                keys = [j for j in keys if j <= i and (left is None or j >= i - left)]
            for head in range(heads):
                scores = scale * k[row, keys, head // shared] @ q[row, i, head]
                weights = np.exp(scores - scores.max())
                y[row, i, head] = weights @ v[row, keys, head // shared] / weights.sum()
    return y


def short_conv(x, kernel, bias=None, *, segment_ids=None, counts=None) -> np.ndarray:
    """y[t] = sum_j kernel[T - 1 - j] x[t - j] + bias, within a segment."""
    y = np.zeros(x.shape)
    for row in range(x.shape[0]):
        count = x.shape[1] if counts is None else counts[row]
        starts = segment_starts(segment_ids[row][:count]) if segment_ids is not None else [0] * count
        for t in range(count):
            for back in range(kernel.shape[0]):
                if t - back >= starts[t]:
                    y[row, t] += kernel[-1 - back] * x[row, t - back]
            if bias is not None:
                y[row, t] += bias
    return y


def rotary(x, positions, dim: int, base: float, interleaved: bool) -> np.ndarray:
    """Pairs of channels as complex numbers, turned by position * base^(-2 i / dim)."""
    pairs = math.ceil(dim / 2)
    turns = np.exp(1j * positions[..., None] * base ** (-2 * np.arange(pairs) / dim))[:, :, None, :]
    one = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    two = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    turned = (x[..., one] + 1j * x[..., two]) * turns
    y = np.array(x, np.float64)
    y[..., one], y[..., two] = turned.real, turned.imag
    return y


def window_and_older(q, k, v, left, ids, weight, scale=None) -> np.ndarray:
    """Weights query by query: exp of the scores in the window, weight(q, k, head) before it, one normaliser.

    Keys and values have fewer heads than queries, or as many. `ids` are segment ids.
    """
    scale, shared = q.shape[-1] ** -0.5 if scale is None else scale, q.shape[2] // k.shape[2]
    y = np.zeros((*q.shape[:3], v.shape[-1]))
    for row in range(len(q)):
        starts = segment_starts(ids[row])
        for head in range(q.shape[2]):
            keys, values = k[row, :, head // shared], v[row, :, head // shared]
            for i in range(q.shape[1]):
                query, seen = q[row, i, head], range(starts[i], i + 1)
                near = [math.exp(scale * query @ keys[j]) for j in seen if i - j <= left]
                older = [weight(query, keys[j], head) for j in seen if i - j > left]
                weights = np.array([*older, *near])
                y[row, i, head] = weights @ values[list(seen)] / weights.sum()
    return y
