"""Linear attention with Based's second-order Taylor map, fused into the scan (Based, section 4.1).

    y_i = sum_{j <= i} (1 + s + s^2 / 2) v_j / (sum_{j <= i} (1 + s + s^2 / 2) + eps),  s = q_i.k_j / sqrt(K)

Only one chunk's features (153 per head and token for K = 16) exist at a time, and inside a chunk the
polynomial of q.k is used instead of them. The state keeps the symmetric layout.
"""

from typing import Any

import jax.numpy as jnp

from based_jax.ops.dispatch import implementation_for
from based_jax.ops.feature_maps import TAYLOR, symmetric_taylor_size
from based_jax.ops.linear_attention import (
    LinearAttentionState,
    init_linear_attention_state,
    linear_attention,
)
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array


def taylor_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    *,
    log_decay: Float[Array, "rows steps H"] | None = None,
    eps: float = 1e-12,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Any:
    """Causal Taylor linear attention; arguments, results and errors as `linear_attention`.

    q and k are the projections themselves: the map and its 1/sqrt(K) are applied inside.
    """
    chosen = implementation_for("taylor_attention", q, k, v, implementation=implementation)
    return linear_attention(
        q, k, v, feature_map=TAYLOR, log_decay=log_decay, eps=eps, initial_state=initial_state,
        return_state=return_state, segment_ids=segment_ids, mask=mask, chunk_size=chunk_size,
        implementation=chosen,
    )  # fmt: skip


def init_taylor_state(
    batch_size: int, num_heads: int, key_size: int, value_size: int, dtype: Any = jnp.float32
) -> LinearAttentionState:
    """The empty state of `taylor_attention` for keys of `key_size` (symmetric features) and values."""
    return init_linear_attention_state(
        batch_size, num_heads, symmetric_taylor_size(key_size), value_size, dtype
    )


def taylor_step(
    q: Float[Array, "B H K"],
    k: Float[Array, "B H K"],
    v: Float[Array, "B H V"],
    state: LinearAttentionState,
    *,
    eps: float = 1e-12,
    implementation: str | None = None,
) -> tuple[Float[Array, "B H V"], LinearAttentionState]:
    """One decoding step: add the token to the state, then read it (a token sees itself).

    Returns:
        y: (B, H, V), and the moved state.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        expect_array(name, array, ("B", "H", "dim"), "floating")
    y, state = taylor_attention(
        q[:, None], k[:, None], v[:, None],
        eps=eps, initial_state=state, return_state=True, implementation=implementation,
    )  # fmt: skip
    return y[:, 0], state
