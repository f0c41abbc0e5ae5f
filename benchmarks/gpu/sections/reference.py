"""Reference for the device: Taylor attention, its gradients, and the decoding steps in NumPy float64.

The quadratic form and its derivative by hand, one row and head at a time; nothing is shared with the kernels
but the order of the features in a state.
"""

from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
    """Arrays of one call, float64 (B, N, H, dim), and the incoming gradients."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dy: np.ndarray
    kv: np.ndarray
    """(B, H, F, V), the initial state"""
    z: np.ndarray
    """(B, H, F)"""
    dkv: np.ndarray
    """gradients of the final state"""
    dz: np.ndarray
    starts: np.ndarray
    """(B, N) first token that each token sees; negative: it sees the initial state, too"""
    counts: np.ndarray
    """(B,) number of real tokens"""


class Solution(NamedTuple):
    """Outputs, final state, gradients of q, k, v and of the initial state."""

    y: np.ndarray
    kv: np.ndarray
    z: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dkv: np.ndarray
    dz: np.ndarray


class FeatureMap:
    """[1, x, x^2 / sqrt(2), x_m x_n for n < m] of x / K^(1/4) = weight * (x1 A) * (x1 B), x1 = (x, 1)."""

    def __init__(self, width: int):
        m, n = np.tril_indices(width, -1)
        channels, ones = np.arange(width), np.full(width, width)
        first = np.concatenate([[width], channels, channels, m])
        second = np.concatenate([[width], ones, channels, n])
        self._a, self._b = np.eye(width + 1)[:, first], np.eye(width + 1)[:, second]
        self._weight = np.repeat(
            [1, width**-0.25, (2 * width) ** -0.5, width**-0.5], [1, width, width, len(m)]
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map (..., K) to (..., F)."""
        x = self._with_one(x)
        return self._weight * (x @ self._a) * (x @ self._b)

    def gradient(self, x: np.ndarray, dphi: np.ndarray) -> np.ndarray:
        """Return the gradient (..., K) of x for a gradient (..., F) of the features."""
        x, dphi = self._with_one(x), dphi * self._weight
        return ((dphi * (x @ self._b)) @ self._a.T + (dphi * (x @ self._a)) @ self._b.T)[..., :-1]

    @staticmethod
    def _with_one(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.ones_like(x[..., :1])], axis=-1)


def taylor_attention(problem: Problem, eps: float = 1e-12) -> Solution:
    """Return everything that `pallas_kernels.taylor_attention` and its gradient return."""
    batch, length, heads, width = problem.q.shape
    phi = FeatureMap(width)
    arrays = [problem.v, problem.kv, problem.z, problem.q, problem.k, problem.v, problem.kv, problem.z]
    out = Solution(*(np.zeros_like(x) for x in arrays))
    for b in range(batch):
        count, start = problem.counts[b], problem.starts[b]
        index = np.arange(length)
        sees = (index <= index[:, None]) & (index >= start[:, None]) & (index[:, None] < count)
        sees_state = ((start < 0) & (index < count))[:, None]
        ends = ((index >= start[count - 1]) & (index < count))[:, None]
        keeps = start[count - 1] < 0
        for h in range(heads):
            q, k, v, dy = (x[b, :, h] for x in problem[:4])
            kv, z, dkv, dz = (x[b, h] for x in problem[4:8])
            phi_q, phi_k = phi(q) * sees_state, phi(k) * ends
            s = q @ k.T / np.sqrt(width)
            p = np.where(sees, 1 + s + s * s / 2, 0)
            den = p.sum(1) + phi_q @ z + eps
            real = (index < count)[:, None]
            y = np.where(real, (p @ v + phi_q @ kv) / den[:, None], 0)
            out.y[b, :, h] = y
            out.kv[b, h] = phi_k.T @ v + keeps * kv
            out.z[b, h] = phi_k.sum(0) + keeps * z
            dn = np.where(real, dy / den[:, None], 0)
            dd = -(dn * y).sum(1)
            ds = np.where(sees, (dn @ v.T + dd[:, None]) * (1 + s), 0) / np.sqrt(width)
            dphi_q = (dn @ kv.T + np.outer(dd, z)) * sees_state
            dphi_k = (v @ dkv.T + dz) * ends
            out.dq[b, :, h] = ds @ k + phi.gradient(q, dphi_q)
            out.dk[b, :, h] = ds.T @ q + phi.gradient(k, dphi_k)
            out.dv[b, :, h] = p.T @ dn + phi_k @ dkv
            out.dkv[b, h] = phi_q.T @ dn + keeps * dkv
            out.dz[b, h] = phi_q.T @ dd + keeps * dz
    return out


def taylor_step(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, kv: np.ndarray, z: np.ndarray, eps: float = 1e-12
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute one token: q, k, v (B, H, dim) and the state to y and the new state."""
    phi = FeatureMap(q.shape[-1])
    kv, z = kv + phi(k)[..., None] * v[..., None, :], z + phi(k)
    denominator = np.einsum("bhf,bhf->bh", phi(q), z) + eps
    return np.einsum("bhf,bhfv->bhv", phi(q), kv) / denominator[..., None], kv, z


def window_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    dy: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    left: int,
) -> tuple[np.ndarray, ...]:
    """Return y and the gradients of q, k, v, head by head with all pairs of tokens; 0 at padding.

    Args:
        q, dy: (B, N, H, D); k, v: (B, N, G, D).
        starts, counts: (B, N) and (B,), see `pallas_kernels.window_attention`.
    """
    results, shared = [np.zeros_like(x) for x in (q, q, k, v)], q.shape[2] // k.shape[2]
    y, dq, dk, dv = results
    token, scale = np.arange(q.shape[1]), q.shape[-1] ** -0.5
    for row, head in np.ndindex(q.shape[0], q.shape[2]):
        oldest = np.maximum(starts[row], token - left)[:, None]
        visible = (token <= token[:, None]) & (token >= oldest) & (token[:, None] < counts[row])
        at, key = (row, slice(None), head), (row, slice(None), head // shared)
        scores = np.where(visible, scale * q[at] @ k[key].T, -np.inf)
        weights = np.where(visible, np.exp(scores - np.maximum(scores.max(1, keepdims=True), -1e300)), 0)
        weights /= np.maximum(weights.sum(1, keepdims=True), 1e-300)
        y[at] = weights @ v[key]
        slopes = weights * (dy[at] @ v[key].T - (dy[at] * y[at]).sum(1, keepdims=True)) * scale
        dq[at] = slopes @ k[key]
        dk[key] += slopes.T @ q[at]
        dv[key] += weights.T @ dy[at]
    return y, dq, dk, dv


def window_step(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, k_ring: np.ndarray, v_ring: np.ndarray, length: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute one token without rotation: q (B, H, K), rings (B, W, G, dim), tokens before it (B,)."""
    slots, shared = k_ring.shape[1], q.shape[1] // k.shape[1]
    k_ring, v_ring = k_ring.copy(), v_ring.copy()
    y = np.zeros((*q.shape[:2], v.shape[-1]))
    for b, n in enumerate(length):
        k_ring[b, n % slots], v_ring[b, n % slots] = k[b], v[b]
        filled = np.arange(min(n + 1, slots))  # slots fill from the first one on
        for h in range(q.shape[1]):
            scores = k_ring[b, filled, h // shared] @ q[b, h] / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            y[b, h] = weights @ v_ring[b, filled, h // shared] / weights.sum()
    return y, k_ring, v_ring
