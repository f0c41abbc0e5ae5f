"""Linear attention with Based's second-order Taylor map, fused into the scan (Based, section 4.1).

    y_i = sum_{j <= i} (1 + s + s^2 / 2) v_j / (sum_{j <= i} (1 + s + s^2 / 2) + eps),  s = q_i.k_j / sqrt(K)

Only one chunk's features (153 per head and token for K = 16) exist at a time, and within a chunk the
polynomial of q.k replaces them. The state has the symmetric layout.
"""

import numbers
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax.ops.core.arrays import kernel_precision
from based_jax.ops.core.implementations import KERNELS, choose
from based_jax.ops.core.op import body, expect_number, expect_qkv, expect_state, op, stateful_op
from based_jax.ops.core.stream import advance, continue_from
from based_jax.ops.feature_maps import TAYLOR, symmetric_taylor_size
from based_jax.ops.linear_attention import (
    LinearAttentionState,
    Sums,
    init_linear_attention_state,
    linear_attention,
    sums_before,
)
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array

State = LinearAttentionState

NO_ARRAY = "the kernels are compiled for a number (eps), and this is an array"


def _supports(kernel: str, q: Array, k: Array, v: Array) -> str | None:
    reason = pallas_kernels.supports_taylor_attention(q, k, v)
    if reason is None and kernel == "mosaic":
        return pallas_kernels.supports_mosaic_taylor_attention(q, k, v)
    return reason


def _supports_step(kernel: str, q: Array, k: Array, v: Array, state: State | None = None) -> str | None:
    return pallas_kernels.supports_taylor_step(q, k, v)


def _fastest(found: str, q: Array, k: Array, v: Array) -> str:
    if found == "xla" or pallas_kernels.is_slow_taylor_attention(q, k, v):
        return "xla"
    return pallas_kernels.fastest_taylor_attention(q, k, v) if found == "pallas" else found


def _fastest_step(found: str, q: Array, k: Array, v: Array, state: State | None = None) -> str:
    if found != "pallas":
        return found
    kv = jax.ShapeDtypeStruct((), jnp.float32) if state is None else state.kv
    return pallas_kernels.fastest_taylor_step(q, k, v, kv)


@stateful_op(
    "pallas",
    "mosaic",
    "xla",
    "reference",
    supports=_supports,
    fastest=_fastest,
    tokens=("q", "k", "v", "log_decay", "segment_ids", "mask"),
)
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
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearAttentionState]:
    """Attend causally with Based's Taylor map of q and k, (B, N, H, K), to v; return y, (B, N, H, V).

    Shared arguments, results and errors: `help(based_jax.ops)`; v, log_decay, eps and chunk_size:
    `linear_attention`. Pass q and k unmapped and unscaled: the op applies the map and its 1/sqrt(K).

    Args:
        implementation: "pallas", the fused GPU kernels (K <= 32, V <= 256, no decay, one dtype; float32 and
            float16 inputs use TF32 matmuls unless JAX's default matmul precision is "highest"); "mosaic",
            others in Hopper's instructions (K = 16, bfloat16, jax >= 0.11); "xla", the chunked scan;
            "reference", quadratic; or None for the best.
    """
    batch, _, heads, width, value_size = expect_qkv(q, k, v)
    expect_number("eps", eps)
    shape = (batch, heads, symmetric_taylor_size(width), value_size)
    expect_state(initial_state, kv=shape, k=shape[:3])
    unsupported = None
    if log_decay is not None:
        unsupported = "the kernels have no decay (log_decay)"
    elif initial_state is not None and initial_state.kv.dtype == jnp.float64:
        unsupported = "the kernels take no float64 state"
    elif not isinstance(eps, numbers.Real):
        unsupported = NO_ARRAY
    chosen = choose("taylor_attention", q, k, v, implementation=implementation, unsupported=unsupported)
    if chosen in KERNELS:
        return _fused(eps, return_state, chosen, (q, k, v), initial_state, segment_ids, mask)
    how: dict[str, Any] = {"log_decay": log_decay, "eps": eps, "initial_state": initial_state}
    how |= {"segment_ids": segment_ids, "mask": mask, "chunk_size": chunk_size, "implementation": chosen}
    return body(linear_attention)(q, k, v, feature_map=TAYLOR, return_state=return_state, **how)


def _fused(
    eps: float, return_state: bool, backend: str, qkv: Any, state: State | None, segment_ids: Any, mask: Any
) -> Any:
    """Run the kernels, given each token's segment start in this call and the number of real tokens."""
    batch, length, heads, width, value_size = expect_qkv(*qkv)
    call = continue_from(state, batch, length, segment_ids, mask)
    q, k, v = call.unpadded(qkv)
    options: dict[str, Any] = {
        "eps": eps,
        "starts": None if call.start is None else jnp.broadcast_to(call.start, (batch, length)),
        "counts": None if mask is None else mask.sum(axis=1),
        "precision": kernel_precision(),
        "backend": backend,
    }

    def run(sums: Sums | None, return_state: bool = True) -> Any:
        state: dict[str, Any] = {"initial_state": sums, "return_state": return_state}
        return pallas_kernels.taylor_attention(q, k, v, **state, **options)

    sums = None if state is None else (state.kv, state.k)
    if call.follows_shards:
        empty = init_taylor_state(batch, heads, width, value_size)
        sums = sums_before(call, run, (empty.kv, empty.k))
    if not return_state:
        return run(sums, False)
    y, (kv, k_sum) = run(sums)
    return y, LinearAttentionState(kv, k_sum, call.after)


def init_taylor_state(
    batch_size: int, num_heads: int, key_size: int, value_size: int, dtype: Any = jnp.float32
) -> LinearAttentionState:
    """Return the empty state of `taylor_attention` for keys of `key_size` (symmetric features) and values."""
    features = symmetric_taylor_size(key_size)
    return init_linear_attention_state(batch_size, num_heads, features, value_size, dtype)


@op("pallas", "triton", "xla", "reference", supports=_supports_step, fastest=_fastest_step)
def taylor_step(
    q: Float[Array, "B H K"],
    k: Float[Array, "B H K"],
    v: Float[Array, "B H V"],
    state: LinearAttentionState,
    *,
    eps: float = 1e-12,
    implementation: str | None = None,
) -> tuple[Float[Array, "B H V"], LinearAttentionState]:
    """Take one decoding step: add the token to the state, then read it (a token sees itself).

    The fused kernels update the state in place if it is donated to `jit`, and keep its dtype; the others
    return a float32 state (float64 for float64 values).

    Returns:
        y: (B, H, V), and the new state.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        expect_array(name, array, ("B", "H", "dim"), "floating")
    expect_number("eps", eps)
    rows = (*q.shape[:2], symmetric_taylor_size(q.shape[-1]))
    expect_state(state, kv=(*rows, v.shape[-1]), k=rows)
    unsupported = None if isinstance(eps, numbers.Real) else NO_ARRAY
    if state.kv.dtype == jnp.float64:
        unsupported = "the kernel takes no float64 state"
    chosen = choose("taylor_step", q, k, v, state, implementation=implementation, unsupported=unsupported)
    if chosen in KERNELS:
        kv, k_sum = state.kv, state.k
        y, kv, k_sum = pallas_kernels.taylor_step(q, k, v, kv, k_sum, eps=eps, backend=chosen)
        return y, LinearAttentionState(kv, k_sum, body(advance)(state.stream, q.shape[0], 1)[1])
    tokens = (x[:, None] for x in (q, k, v))
    options: dict[str, Any] = {"eps": eps, "initial_state": state, "implementation": chosen}
    y, state = body(taylor_attention)(*tokens, return_state=True, **options)
    return y[:, 0], state
