"""Reference for the kernels: Taylor attention, softmax attention in windows, and their single steps.

Attention has all pairs of tokens, and JAX differentiates it; nothing is shared with the kernels but the order
of the features in a state. Call it under `jax.enable_x64`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def features(x: Any) -> Any:
    """Map (..., K) to [1, x, x^2 / sqrt(2), x_m x_n for n < m] of x / K^(1/4), (..., F); NumPy's or JAX's."""
    x = x * x.shape[-1] ** -0.25
    m, n = np.tril_indices(x.shape[-1], -1)
    concatenate = jnp.concatenate if isinstance(x, jax.Array) else np.concatenate
    return concatenate([x[..., :1] * 0 + 1, x, x * x * 0.5**0.5, x[..., m] * x[..., n]], axis=-1)


def taylor_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    initial_state: tuple[jax.Array, jax.Array] | None = None,
    return_state: bool = False,
    starts: jax.Array | None = None,
    counts: jax.Array | None = None,
    eps: float = 1e-12,
) -> Any:
    """Return what `pallas_kernels.taylor_attention` returns for these arguments."""
    batch, length, heads, width = q.shape
    size = features(q).shape[-1]
    zeros = jnp.zeros((batch, heads, size, v.shape[-1])), jnp.zeros((batch, heads, size))
    kv, z = zeros if initial_state is None else initial_state
    starts = jnp.full((batch, length), -1) if starts is None else starts
    visible, real = _visible(q, starts, counts)
    s = jnp.einsum("bnhk,bmhk->bhnm", q, k) * width**-0.5
    p = jnp.where(visible[:, None], 1 + s + s * s / 2, 0)
    phi_q = features(q) * ((starts < 0) & real)[..., None, None]
    sums = jnp.einsum("bhnm,bmhv->bnhv", p, v) + jnp.einsum("bnhf,bhfv->bnhv", phi_q, kv)
    normaliser = jnp.einsum("bhnm->bnh", p) + jnp.einsum("bnhf,bhf->bnh", phi_q, z) + eps
    y = jnp.where(real[..., None, None], sums / normaliser[..., None], 0)
    if not return_state:
        return y
    last = jnp.take_along_axis(starts, real.sum(1, keepdims=True) - 1, axis=1)
    phi_k = features(k) * ((jnp.arange(length) >= last) & real)[..., None, None]
    keeps = (last < 0)[..., None]
    return y, (jnp.einsum("bnhf,bnhv->bhfv", phi_k, v) + keeps[..., None] * kv, phi_k.sum(1) + keeps * z)


def window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    left: int,
    starts: jax.Array | None = None,
    counts: jax.Array | None = None,
) -> jax.Array:
    """Return what `pallas_kernels.window_attention` returns: y (B, N, H, V), 0 at padding."""
    visible, real = _visible(q, starts, counts)
    index, shared = jnp.arange(q.shape[1]), q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, shared, axis=2) for x in (k, v))
    visible &= index >= index[:, None] - left
    scores = jnp.einsum("bnhk,bmhk->bhnm", q, k) * q.shape[-1] ** -0.5
    # Padding sees itself: a row without any key would give NaN.
    scores = jnp.where(visible[:, None] | jnp.eye(len(index), dtype=bool), scores, -jnp.inf)
    return jnp.where(real[..., None, None], jnp.einsum("bhnm,bmhv->bnhv", jax.nn.softmax(scores), v), 0)


def _visible(q: jax.Array, starts: Any, counts: Any) -> tuple[jax.Array, jax.Array]:
    """Return which keys (B, N, N) each query sees by segments and padding, and which are real, (B, N)."""
    index = jnp.arange(q.shape[1])
    real = index < (q.shape[1] if counts is None else counts[:, None])
    real = jnp.broadcast_to(real, q.shape[:2])
    visible = (index <= index[:, None]) & real[..., None]
    return visible if starts is None else visible & (index >= starts[..., None]), real


def taylor_step(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, kv: np.ndarray, z: np.ndarray, eps: float = 1e-12
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute one token: q, k, v (B, H, dim) and the state to y and the new state."""
    kv, z = kv + features(k)[..., None] * v[..., None, :], z + features(k)
    denominator = np.einsum("bhf,bhf->bh", features(q), z) + eps
    return np.einsum("bhf,bhfv->bhv", features(q), kv) / denominator[..., None], kv, z


def window_step(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, k_ring: np.ndarray, v_ring: np.ndarray, length: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute one token without rotation: q (B, H, K), rings (B, W, G, dim), tokens before it (B,)."""
    slots, shared = k_ring.shape[1], q.shape[1] // k.shape[1]
    k_ring, v_ring = k_ring.copy(), v_ring.copy()
    rows = np.arange(len(length))
    k_ring[rows, length % slots], v_ring[rows, length % slots] = k, v
    keys, values = (np.repeat(ring, shared, axis=2) for ring in (k_ring, v_ring))
    scores = np.einsum("bhk,bwhk->bwh", q, keys) * q.shape[-1] ** -0.5
    # Slots fill from the first one on.
    scores = np.where(np.arange(slots)[:, None] <= length[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("bwh,bwhv->bhv", weights / weights.sum(1, keepdims=True), values), k_ring, v_ring
