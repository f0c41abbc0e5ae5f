"""The delta rule: a matrix state whose writes replace the old value (DeltaNet, Gated DeltaNet, RWKV-7).

    S_t = diag(exp(g_t)) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T,     y_t = S_t^T q_t

The delta rule proper, S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, has a_t = k_t,
b_t = -exp(g_t) beta_t k_t and writes beta_t k_t (Schlag et al. 2021; Yang et al. 2024a, b).

The recurrence token by token is the definition. The chunked form needs the reads
u_t = S_{t-1}^T a_t. Inside a chunk S_{t-1} is the state before the chunk plus the k_j v_j^T and b_j u_j^T
with j < t, hence the u_t solve a unit lower triangular system (Yang et al. 2024a, section 3); given them, the
chunk is that of a plain linear recurrence. Products of gates are formed as in `core/decay.py`. Both ops have
a fused kernel.

Products that the state goes through have full precision: a transition need not shrink, with beta = 2 it
reflects, and errors of the 10 bits that are the default on a GPU would add up.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from based_jax.ops.core import decay
from based_jax.ops.core.arrays import accumulation_dtype, cast
from based_jax.ops.core.chunks import chunk_mask, heads_first, scan_chunks
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.op import body, expect_chunk_size, expect_qkv, expect_scale, expect_state, stateful_op
from based_jax.ops.core.stream import continue_from, unpadded
from based_jax.ops.linear_recurrence import (
    LinearRecurrenceState,
    fastest_recurrence,
    fused_recurrence,
    init_linear_recurrence_state,
    product,
    refused,
    supports_kernel,
    token_by_token,
)
from based_jax.typing import Array, Bool, Float, Int, Scale
from based_jax.validate import expect_array

CHUNK = 64
"""Tokens per chunk."""


@stateful_op(
    "pallas",
    "xla",
    "reference",
    supports=supports_kernel,
    fastest=fastest_recurrence,
    tokens=("q", "k", "v", "beta", "log_decay", "segment_ids", "mask"),
)
def delta_rule(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    beta: Float[Array, "B N H"],
    log_decay: Float[Array, "rows steps H"] | None = None,
    *,
    scale: Scale | None = None,
    initial_state: LinearRecurrenceState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearRecurrenceState]:
    """Move the state's value for each key towards v by the fraction beta, then read the state with q.

    Shared arguments, results and errors: `help(based_jax.ops)`. Returns y, (B, N, H, V); 0 at masked tokens.

    Args:
        q, k: queries and keys; with keys of unit length beta = 1 replaces the old value exactly.
        v: values.
        beta: 0 keeps the old value, 1 replaces it, values up to 2 overshoot; above 2 the state may grow.
        log_decay: logarithm of the factor that each token applies to the state before it, <= 0; None for no
            decay. The first two axes may be 1.
        scale: factor of the outputs; default K^(-1/2).
        chunk_size: tokens per chunk of "xla"; default 64. "reference" goes token by token.
        implementation: "pallas", the fused GPU kernel (K up to 256); "xla"; "reference"; or None for the
            best: from 16 tokens on the kernel where it can, else "xla".
    """
    batch, length, heads, width, value_size = expect_qkv(q, k, v)
    expect_array("beta", beta, (batch, length, heads), "floating")
    if log_decay is not None:
        decay.expect_log_decay(log_decay, batch, length, (heads,))
    expect_state(initial_state, kv=(batch, heads, width, value_size))
    expect_chunk_size(chunk_size, CHUNK)
    factor = expect_scale(scale, width)
    unsupported = refused(initial_state, beta=beta)
    chosen = choose("delta_rule", q, k, v, implementation=implementation, unsupported=unsupported)
    if chosen == "pallas":
        how = factor, initial_state, return_state, segment_ids, mask
        return fused_recurrence((q, k, v, log_decay), *how, beta=beta)
    dtype = accumulation_dtype(v)
    k, beta = unpadded(mask, (k, beta))  # of padding, NaN would reach the gradient of a shared decay
    written = k.astype(dtype) * beta[..., None].astype(dtype)
    erased = -written
    if log_decay is not None:
        erased = erased * jnp.exp(log_decay.astype(dtype))[..., None]
    options: dict[str, Any] = {"scale": factor, "chunk_size": chunk_size, "implementation": chosen}
    options |= {"initial_state": initial_state, "segment_ids": segment_ids, "mask": mask}
    return body(generalized_delta_rule)(
        q, written, v, k, erased, log_decay, return_state=return_state, **options
    )


def supports_low_rank(kernel: str, q: Array, k: Array, v: Array) -> str | None:
    """Return why the kernel cannot take these arrays, or None."""
    return pallas_kernels.supports_linear_recurrence(q, k, v, low_rank=True)


@stateful_op(
    "pallas",
    "xla",
    "reference",
    supports=supports_low_rank,
    fastest=fastest_recurrence,
    tokens=("q", "k", "v", "a", "b", "log_decay", "segment_ids", "mask"),
)
def generalized_delta_rule(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    a: Float[Array, "B N H K"],
    b: Float[Array, "B N H K"],
    log_decay: Float[Array, "rows steps H *channels"] | None = None,
    *,
    scale: Scale | None = None,
    initial_state: LinearRecurrenceState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], LinearRecurrenceState]:
    """Run the recurrence with a diagonal plus low-rank transition, diag(exp(g)) + b a^T.

    Shared arguments, results and errors: `help(based_jax.ops)`; scale, chunk_size and implementation:
    `delta_rule`, but for the kernel's keys, up to 128 channels.

    Args:
        q, k, v: queries, keys and values.
        a: reads the state before the token, as S^T a.
        b: key under which that read is added to the state.
        log_decay: (B, N, H), or (B, N, H, K) for a gate per channel, <= 0; None for no decay. The first two
            axes may be 1.
    """
    batch, length, heads, width, value_size = expect_qkv(q, k, v)
    for name, array in (("a", a), ("b", b)):
        expect_array(name, array, q.shape, "floating")
    if log_decay is not None:
        decay.expect_log_decay(log_decay, batch, length, (heads,), (heads, width))
    expect_state(initial_state, kv=(batch, heads, width, value_size))
    chunk_size = expect_chunk_size(chunk_size, CHUNK)
    factor = expect_scale(scale, width)
    unsupported = refused(initial_state, a=a, b=b)
    chosen = choose("generalized_delta_rule", q, k, v, implementation=implementation, unsupported=unsupported)
    if chosen == "pallas":
        rest = factor, initial_state, return_state, segment_ids, mask
        return fused_recurrence((q, k, v, log_decay), *rest, low_rank=(a, b))
    if log_decay is not None:
        log_decay = log_decay.astype(accumulation_dtype(v))  # before its gradient sums over what shares it
        log_decay = log_decay if log_decay.ndim == 4 else log_decay[..., None]
        log_decay = jnp.broadcast_to(log_decay, (batch, length, *log_decay.shape[2:]))

    dtype = accumulation_dtype(v)
    state = initial_state or init_linear_recurrence_state(batch, heads, width, value_size, dtype)
    call = continue_from(initial_state, batch, length, segment_ids, mask)

    # A token of zeros keeps the state and reads 0, so the code below needs no mask.
    tokens = cast(call.unpadded((q, k, v, a, b, log_decay)), dtype)
    tokens = ((tokens[0] * factor).astype(dtype), *tokens[1:])

    def compute(tokens: Any, kv: Array) -> tuple[Array, Array]:
        if chosen == "reference" or length == 1:  # a step of the recurrence: there is no system to solve
            return token_by_token((*tokens[:3], tokens[5]), kv, call.start, low_rank=tokens[3:5])
        with jax.default_matmul_precision("highest"):
            return _chunked(tokens, kv, call.start, chunk_size)

    def operator() -> Array:
        """Return the transition operator: the result for a unit matrix if nothing is written."""
        unit = jnp.broadcast_to(jnp.eye(width, dtype=dtype), (batch, heads, width, width))
        silent = (*tokens[:2], jnp.zeros_like(tokens[1]), *tokens[3:])
        return compute(silent, unit)[1]

    run = functools.partial(compute, tokens)
    y, kv = run(call.prefix(run, state.kv.astype(dtype), operator, product))
    y = y.astype(v.dtype)
    return (y, LinearRecurrenceState(kv, call.after)) if return_state else y


def _chunked(
    tokens: Any, kv: Float[Array, "B H K V"], start: Int[Array, "rows N"] | None, chunk_size: int
) -> tuple[Array, Array]:
    """Scan q, k, v, a, b and log_decay in chunks, starting from `kv`."""

    def step(kv: Array, chunk: Any, start: Array | None, mask: Array | None) -> tuple[Array, Array]:
        q, k, v, a, b, log_decay = jax.tree.map(heads_first, chunk)
        visibility = chunk_mask(q.shape[-2], start, None, diagonal=False)
        # a and q read the writes of earlier tokens, q after one more step of decay; b and k write u and v.
        writers = jnp.stack([b, k])
        if log_decay is None:
            readers = jnp.stack([a, q])
            products, decayed, kept = readers[:, None] @ writers.mT, writers, visibility.kept(kv)
        else:
            readers = jnp.stack([a, q * jnp.exp(log_decay)])
            products = decay.pair_products(readers[:, None], writers, log_decay, inclusive=False)
            readers = readers * decay.since_start(log_decay, inclusive=False)
            decayed = writers * decay.until_end(log_decay)
            kept = decay.across(log_decay)[..., None] * visibility.kept(kv)
        products = jnp.where(visibility.visible, products, 0)
        from_a, from_q = visibility.reading(readers @ kv)
        u = _solve_unit_lower(products[0, 0], from_a + products[0, 1] @ v)
        values = jnp.stack([u, v])
        own = jnp.sum(q * writers, axis=-1, keepdims=True)
        y = from_q + jnp.sum(products[1] @ values + own * values, axis=0)
        return heads_first(y), kept + jnp.sum(visibility.entering(decayed).mT @ values, axis=0)

    return scan_chunks(step, kv, tokens, chunk_size=chunk_size, start=start, mask=None)


def _solve_unit_lower(a: Float[Array, "... C C"], x: Float[Array, "... C V"]) -> Float[Array, "... C V"]:
    """Solve u = a u + x for a strictly lower triangular `a`, by matmuls.

    With LAPACK's solver the whole op took 7 to 25 times as long on a shared CPU; the series 1 + a + a^2 + ...
    loses digits.
    """
    inverse = _inverse(lax.stop_gradient(a))

    def left_side(u: Array) -> Array:
        return u - a @ u

    def solve(_: Any, x: Array) -> Array:
        return inverse @ x

    def transpose_solve(_: Any, x: Array) -> Array:
        return inverse.mT @ x

    return lax.custom_linear_solve(left_side, x, solve, transpose_solve)


def _inverse(a: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """Return (1 - a)^-1 of a strictly lower triangular `a`, from the inverses of its halves.

    [[P, 0], [Q, R]]^-1 = [[P^-1, 0], [-R^-1 Q P^-1, R^-1]]; an odd size is padded.
    """
    size = a.shape[-1]
    if size <= 2:
        return jnp.eye(size, dtype=a.dtype) + a
    half = -(-size // 2)
    a = jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, size % 2)] * 2)
    halves = jnp.stack([a[..., :half, :half], a[..., half:, half:]], axis=-3)
    first, second = jnp.moveaxis(_inverse(halves), -3, 0)
    below = second @ a[..., half:, :half] @ first
    rows = [[first, jnp.zeros_like(below)], [below, second]]
    whole = jnp.concatenate([jnp.concatenate(row, axis=-1) for row in rows], axis=-2)
    return whole[..., :size, :size]
