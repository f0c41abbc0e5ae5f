"""The delta rule: a matrix state that erases what it overwrites (DeltaNet, Gated DeltaNet, RWKV-7).

    S_t = diag(exp(g_t)) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T,     y_t = S_t^T q_t

The delta rule proper, S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, has a_t = k_t,
b_t = -exp(g_t) beta_t k_t and writes beta_t k_t (Schlag et al. 2021; Yang et al. 2024a, b).

Two forms: the recurrence token by token is the specification. The chunked one asks for what is read before
it is erased, u_t = S_{t-1}^T a_t. Inside a chunk S_{t-1} consists of the state before it, of the k_j v_j^T
and of the b_j u_j^T with j < t, hence the u_t solve a unit lower triangular system (Yang et al. 2024a,
section 3); with them the chunk is one of a plain linear recurrence. Gates are multiplied as in `decay.py`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops import context_parallel, decay
from based_jax.ops.chunks import heads_first, relative_start, scan_chunks, sight
from based_jax.ops.dispatch import implementation_for
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.eager import compiled
from based_jax.ops.linear_recurrence import LinearRecurrenceState, init_linear_recurrence_state
from based_jax.ops.registration import open_to_others
from based_jax.ops.stream import advance, stream_of, unpadded
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array

CHUNK = 64
"""Tokens per chunk, a multiple of `decay.BLOCK`."""


@open_to_others
@compiled
def delta_rule(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    beta: Float[Array, "B N H"],
    log_decay: Float[Array, "rows steps H"] | None = None,
    *,
    scale: float | None = None,
    initial_state: LinearRecurrenceState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Any:
    """Move what the state holds under each key towards the value, by the share beta; read it with q.

    Args:
        q, k: queries and keys; keys of unit length make the rule exact: beta = 1 replaces.
        v: values.
        beta: 0 leaves the state, 1 replaces, up to 2 overshoots; beyond it the state may grow.
        log_decay: logarithm of what each token leaves of the state before it, <= 0; None leaves all of it.
            The first two axes may be 1.
        scale: factor of the outputs; default K^(-1/2).
        initial_state: continue from here; None starts empty.
        return_state: also return the state behind the last real token.
        segment_ids: (B, N) integers; a token reads its own segment only.
        mask: (B, N) booleans, right padding: masked tokens leave outputs of others and the state alone;
            their own outputs are 0.
        chunk_size: tokens per chunk of "xla"; default 64.
        implementation: "reference" (token by token), "xla" (chunked) or None for the best.

    Returns:
        y: (B, N, H, V) in the dtype of v, or ``(y, state)`` with `return_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message.
    """
    expect_array("k", k, ("B", "N", "H", "K"), "floating")
    batch, length, heads, _ = k.shape
    expect_array("beta", beta, (batch, length, heads), "floating")
    dtype = accumulation_dtype(v)
    written = k.astype(dtype) * beta[..., None].astype(dtype)
    erased = -written
    if log_decay is not None:
        decay.expect_log_decay(log_decay, batch, length, (heads,))
        erased = erased * jnp.exp(log_decay.astype(dtype))[..., None]
    return generalized_delta_rule(
        q, written, v, k, erased, log_decay, scale=scale, initial_state=initial_state,
        return_state=return_state, segment_ids=segment_ids, mask=mask, chunk_size=chunk_size,
        implementation=implementation,
    )  # fmt: skip


@open_to_others
@context_parallel.splits("q", "k", "v", "a", "b", "log_decay", "segment_ids", "mask")
@compiled
def generalized_delta_rule(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N H K"],
    v: Float[Array, "B N H V"],
    a: Float[Array, "B N H K"],
    b: Float[Array, "B N H K"],
    log_decay: Float[Array, "rows steps H *channels"] | None = None,
    *,
    scale: float | None = None,
    initial_state: LinearRecurrenceState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Any:
    """The recurrence with a diagonal plus low-rank transition, diag(exp(g)) + b a^T.

    Args:
        q, k, v: queries, keys and values.
        a: reads the state before the token.
        b: where what a has read is added.
        log_decay: (B, N, H), or (B, N, H, K) for a gate per channel, <= 0; None is no decay. The first two
            axes may be 1.
        scale, initial_state, return_state, segment_ids, mask, chunk_size, implementation: as for
            `delta_rule`.

    Returns:
        y: (B, N, H, V) in the dtype of v, or ``(y, state)`` with `return_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message.
    """
    chosen = implementation_for("generalized_delta_rule", q, k, v, implementation=implementation)
    expect_array("q", q, ("B", "N", "H", "K"), "floating")
    batch, length, heads, width = q.shape
    for name, array in (("k", k), ("a", a), ("b", b)):
        expect_array(name, array, q.shape, "floating")
    expect_array("v", v, (batch, length, heads, "V"), "floating")
    value_size = v.shape[-1]
    if log_decay is not None:
        channels = () if log_decay.ndim == 3 else (width,)
        decay.expect_log_decay(log_decay, batch, length, (heads, *channels))
        log_decay = log_decay if channels else log_decay[..., None]
        log_decay = jnp.broadcast_to(log_decay, (batch, length, *log_decay.shape[2:]))
    state = initial_state
    if state is not None:
        expect_array("initial_state.kv", state.kv, (batch, heads, width, value_size), "floating")
    expect(chunk_size is None or chunk_size >= 1, "chunk_size", chunk_size, "at least 1")

    dtype = accumulation_dtype(v)
    if state is None:
        state = init_linear_recurrence_state(batch, heads, width, value_size, dtype)
    before = stream_of(initial_state, batch, length, segment_ids, mask)
    places, stream = advance(before, batch, length, segment_ids, mask)

    # A token of zeros leaves the state alone and reads 0, so that nothing below asks for the mask.
    q, *rest = jax.tree.map(lambda x: x.astype(dtype), unpadded(mask, [q, k, v, a, b, log_decay]))
    tokens = [q * (width**-0.5 if scale is None else scale), *rest]
    # One token is a step of the recurrence: no triangle to solve.
    compute = _reference if chosen == "reference" or length == 1 else _chunked
    start = relative_start(places, before, segment_ids)

    def run(kv: Array, tokens: list[Any]) -> tuple[Array, Array]:
        return compute(tokens, kv, start, chunk_size or CHUNK)

    kv = state.kv.astype(dtype)
    if initial_state is None and before is not None:
        # What is left of a unit matrix, where nothing is written, is what is left of any state.
        unit = jnp.broadcast_to(jnp.eye(width, dtype=dtype), (batch, heads, width, width))
        left = run(unit, [*tokens[:2], jnp.zeros_like(tokens[1]), *tokens[3:]])[1]
        kv = context_parallel.sums_before(lambda kv: run(kv, tokens)[1], kv, left, jnp.matmul)
    y, kv = run(kv, tokens)
    y = y.astype(v.dtype)
    return (y, LinearRecurrenceState(kv, stream)) if return_state else y


def _chunked(tokens, kv, start, chunk_size):
    def step(kv, chunk, start, mask):
        q, k, v, a, b, log_decay = jax.tree.map(heads_first, chunk)
        seen = sight(q.shape[-2], start, None, diagonal=False)
        # a and q read what earlier tokens left, q behind one more step of decay; b and k write u and v.
        writers = jnp.stack([b, k])
        if log_decay is None:
            readers = jnp.stack([a, q])
            products, left, kept = readers[:, None] @ writers.mT, writers, seen.kept(kv)
        else:
            readers = jnp.stack([a, q * jnp.exp(log_decay)])
            products = decay.pair_products(readers[:, None], writers, log_decay, inclusive=False)
            readers = readers * decay.since_start(log_decay, inclusive=False)
            left = writers * decay.until_end(log_decay)
            kept = decay.across(log_decay)[..., None] * seen.kept(kv)
        products = jnp.where(seen.visible, products, 0)
        from_a, from_q = seen.reading(readers @ kv)
        u = _solve_unit_lower(products[0, 0], from_a + products[0, 1] @ v)
        values = jnp.stack([u, v])
        own = jnp.sum(q * writers, axis=-1, keepdims=True)
        y = from_q + jnp.sum(products[1] @ values + own * values, axis=0)
        return heads_first(y), kept + jnp.sum(seen.entering(left).mT @ values, axis=0)

    length = tokens[0].shape[1]
    return scan_chunks(step, kv, tokens, length=length, chunk_size=chunk_size, start=start, mask=None)


def _solve_unit_lower(a: Float[Array, "... C C"], x: Float[Array, "... C V"]) -> Float[Array, "... C V"]:
    """u = a u + x for a strictly lower triangular `a`, by matmuls.

    The inverse of a triangle is put together from those of its halves, [[P, 0], [Q, R]]^-1 =
    [[P^-1, 0], [-R^-1 Q P^-1, R^-1]], for all blocks of 1, 2, 4, ... rows at once. With LAPACK's
    solver the whole op took 7 to 25 times as long on a shared CPU; the series 1 + a + a^2 + ... loses digits.
    """
    # Exact, as a solver would be: on a GPU matmuls of float32 are rounded to 10 bits by default.
    matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    fixed = lax.stop_gradient(a)
    size = a.shape[-1]
    row = jnp.arange(size)

    def double(level: Array, inverse: Array) -> Array:
        half, block = row >> level, row >> (level + 1)
        joins = (block[:, None] == block) & (half[:, None] != half)
        return inverse + matmul(matmul(inverse, jnp.where(joins, fixed, 0)), inverse)

    identity = jnp.broadcast_to(jnp.eye(size, dtype=a.dtype), a.shape)
    inverse = lax.fori_loop(0, (size - 1).bit_length(), double, identity)
    return lax.custom_linear_solve(
        lambda u: u - matmul(a, u),
        x,
        solve=lambda _, x: matmul(inverse, x),
        transpose_solve=lambda _, x: matmul(inverse.mT, x),
    )


def _reference(tokens, kv, start, chunk_size):
    """The recurrence as it is written, one token at a time."""
    batch, length = tokens[0].shape[:2]
    begins = jnp.zeros((batch, length), bool) if start is None else start == jnp.arange(length)

    def token(kv, inputs):
        q, k, v, a, b, log_decay, begins = inputs
        kv = jnp.where(begins[:, None, None, None], 0, kv)
        u = jnp.einsum("bhk,bhkv->bhv", a, kv)
        kv = kv if log_decay is None else jnp.exp(log_decay)[..., None] * kv
        kv = kv + b[..., None] * u[..., None, :] + k[..., None] * v[..., None, :]
        return kv, jnp.einsum("bhk,bhkv->bhv", q, kv)

    inputs = (*tokens, jnp.broadcast_to(begins, (batch, length)))
    kv, y = lax.scan(token, kv, jax.tree.map(lambda x: x.swapaxes(0, 1), inputs))
    return y.swapaxes(0, 1), kv
