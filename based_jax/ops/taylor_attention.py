"""Linear attention with Based's second-order Taylor map, fused into the scan (Based, section 4.1).

    y_i = sum_{j <= i} (1 + s + s^2 / 2) v_j / (sum_{j <= i} (1 + s + s^2 / 2) + eps),  s = q_i.k_j / sqrt(K)

Only one chunk's features (153 per head and token for K = 16) exist at a time, and inside a chunk the
polynomial of q.k is used instead of them. The state keeps the symmetric layout.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax.ops import context_parallel
from based_jax.ops.chunks import relative_start
from based_jax.ops.dispatch import KERNELS, implementation_for
from based_jax.ops.eager import compiled
from based_jax.ops.feature_maps import TAYLOR, symmetric_taylor_size
from based_jax.ops.linear_attention import (
    LinearAttentionState,
    check_linear_attention,
    init_linear_attention_state,
    linear_attention,
    sums_before,
)
from based_jax.ops.registration import open_to_others
from based_jax.ops.stream import advance, stays, stream_of, unpadded
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array


@open_to_others
@context_parallel.splits("q", "k", "v", "log_decay", "segment_ids", "mask")
@compiled
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

    Args:
        implementation: "pallas", the fused GPU kernels (K <= 32, V <= 256, no decay, one dtype; float32 and
            float16 inputs use TF32 matmuls unless JAX's default matmul precision is "highest"); "triton",
            the same kernels written for jax-triton; "mosaic", their forward pass on Hopper's own instructions
            (K = 16, bfloat16, jax >= 0.11; gradients by "pallas", "triton" or else "xla"); "xla", the chunked
            scan; "reference", quadratic; or None for the best.
    """
    unsupported = None
    if log_decay is not None:
        unsupported = "the kernels have no decay (log_decay)"
    elif initial_state is not None and initial_state.kv.dtype == jnp.float64:
        unsupported = "the kernels take no float64 state"
    chosen = implementation_for(
        "taylor_attention", q, k, v, implementation=implementation, unsupported=unsupported
    )

    def scan(q, k, v, state, segment_ids, mask) -> Any:
        return linear_attention(
            q, k, v, feature_map=TAYLOR, log_decay=log_decay, eps=eps, initial_state=state,
            return_state=return_state, segment_ids=segment_ids, mask=mask, chunk_size=chunk_size,
            implementation="xla" if chosen in KERNELS else chosen,
        )  # fmt: skip

    def fused(q, k, v, state, segment_ids, mask) -> Any:
        return _fused(q, k, v, eps, state, return_state, segment_ids, mask, chosen)

    if chosen not in KERNELS:
        run = scan
    elif pallas_kernels.cannot_launch_gradient(chosen):
        run = _differentiated_as(scan, fused)
    else:
        run = fused
    return run(q, k, v, initial_state, segment_ids, mask)


def _differentiated_as(plain: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute `function`, with the gradients of `plain`, which computes the same."""
    run = jax.custom_vjp(function)
    run.defvjp(
        lambda *arrays: (function(*arrays), arrays),
        lambda arrays, cotangents: jax.vjp(plain, *arrays)[1](cotangents),
    )
    return run


def _fused(q, k, v, eps, state, return_state, segment_ids, mask, backend) -> Any:
    """The kernels: they know where each token's segment begins in this call and how many tokens are real."""
    batch, length = check_linear_attention(q, k, v, symmetric_taylor_size, state)
    before = stream_of(state, batch, length, segment_ids, mask)
    places, stream = advance(before, batch, length, segment_ids, mask)
    q, k, v = unpadded(mask, (q, k, v))
    starts = relative_start(places, before, segment_ids)
    if starts is not None:
        starts = jnp.broadcast_to(starts, (batch, length))
    config: Any = jax.config
    highest = config.jax_default_matmul_precision in ("highest", "float32")

    def run(sums: tuple[Array, Array] | None, return_state: bool) -> Any:
        return pallas_kernels.taylor_attention(
            q, k, v, eps=eps, initial_state=sums, return_state=return_state, starts=starts,
            counts=None if mask is None else mask.sum(axis=1),
            precision="highest" if highest else None, backend=backend,
        )  # fmt: skip

    sums = None if state is None else (state.kv, state.k)
    if state is None and before is not None:
        heads, width = q.shape[2:]
        empty = init_taylor_state(batch, heads, width, v.shape[-1])
        sums = sums_before(lambda sums: run(sums, True)[1], (empty.kv, empty.k), stays(before, stream), None)
    result = run(sums, return_state)
    if not return_state:
        return result
    y, (kv, k_sum) = result
    return y, LinearAttentionState(kv, k_sum, stream)


def init_taylor_state(
    batch_size: int, num_heads: int, key_size: int, value_size: int, dtype: Any = jnp.float32
) -> LinearAttentionState:
    """The empty state of `taylor_attention` for keys of `key_size` (symmetric features) and values."""
    return init_linear_attention_state(
        batch_size, num_heads, symmetric_taylor_size(key_size), value_size, dtype
    )


@open_to_others
@compiled
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

    The fused kernels update the state in place where `jit` was given it to donate, and keep its
    dtype; the others return a float32 state.

    Returns:
        y: (B, H, V), and the moved state.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        expect_array(name, array, ("B", "H", "dim"), "floating")
    wide = "the kernel takes no float64 state" if state.kv.dtype == jnp.float64 else None
    chosen = implementation_for("taylor_step", q, k, v, implementation=implementation, unsupported=wide)
    if chosen in KERNELS:
        kv, k_sum = state.kv, state.k
        rows = (*q.shape[:2], symmetric_taylor_size(q.shape[-1]))
        expect_array("initial_state.kv", kv, (*rows, v.shape[-1]), "floating")
        expect_array("initial_state.k", k_sum, rows, "floating")
        y, kv, k_sum = pallas_kernels.taylor_step(q, k, v, kv, k_sum, eps=eps, backend=chosen)
        return y, LinearAttentionState(kv, k_sum, advance(state.stream, len(q), 1)[1])
    y, state = taylor_attention(
        q[:, None], k[:, None], v[:, None],
        eps=eps, initial_state=state, return_state=True, implementation=chosen,
    )  # fmt: skip
    return y[:, 0], state
