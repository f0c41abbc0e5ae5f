"""RWKV-4's attention-free average over the past, without overflow (RWKV, equation 16).

    wkv_t = (sum_{i<t} e_i v_i + e^{u + k_t} v_t) / (sum_{i<t} e_i + e^{u + k_t}),   e_i = e^{(t-1-i) w + k_i}

per channel, with a fixed log-decay w <= 0 and a bonus u for the token itself. Keys are exponents of any size,
so the two sums are stored relative to e^m, with m near the largest exponent of their terms:

    m_t = max(m_{t-1} + w, k_t),      sum_t = e^{m_{t-1} + w - m_t} sum_{t-1} + e^{k_t - m_t} (v_t, 1)

Inside a chunk both lines are evaluated as a tree.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import accumulation_dtype, cast, select
from based_jax.ops.core.chunks import scan_chunks
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.op import expect_chunk_size, expect_state, stateful_op
from based_jax.ops.core.platforms import platform_of
from based_jax.ops.core.stream import Stream, continue_from, init_stream
from based_jax.ops.diagonal_scan import even_chunks, scan_along
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array

Sums = tuple[Float[Array, "B E"], Float[Array, "B E"], Float[Array, "B E"]]
"""numerator, denominator and exponent of a state"""

CHUNK = 64
"""Tokens per chunk."""

CHUNK_ON_GPU = 2048
"""Those on a GPU: by count a training step of an RWKV-4 layer (16 x 2,048 tokens) has 1,644 launches in
chunks of 64, and 134 in one chunk."""

EMPTY = -1e38
"""The exponent of an empty sum, and the log-decay that resets the sums: finite, so that the difference of two
such exponents is not NaN."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WKVState:
    """The two sums over each row's current segment, relative to e^exponent; float32 (or float64).

    Gradients take the exponent for a constant: those of numerator e^exponent, not of its factors, are
    derivatives.
    """

    numerator: Float[Array, "B E"]
    denominator: Float[Array, "B E"]
    exponent: Float[Array, "B E"]
    stream: Stream


def init_wkv_state(batch_size: int, channels: int, dtype: Any = jnp.float32) -> WKVState:
    """Return the state before the first token."""

    def filled(value: float) -> Array:  # three arrays: one used twice could not be donated
        return jnp.full((batch_size, channels), value, dtype)

    return WKVState(filled(0), filled(0), filled(EMPTY), init_stream(batch_size))


@stateful_op("xla", "reference", tokens=("k", "v", "segment_ids", "mask"))
def wkv(
    k: Float[Array, "B N E"],
    v: Float[Array, "B N E"],
    log_decay: Float[Array, " E"],
    bonus: Float[Array, " E"],
    *,
    initial_state: WKVState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N E"] | tuple[Float[Array, "B N E"], WKVState]:
    """Average v over the past, weighted by e^k and by age; return y, (B, N, E).

    Shared arguments, results and errors: `help(based_jax.ops)`.

    Args:
        k: exponents of the weights.
        v: values.
        log_decay: w <= 0, added to the exponents of all older weights at each step.
        bonus: u, added to the exponent of the current token.
        chunk_size: tokens per chunk of "xla"; default 64, on a GPU 2,048. "reference" goes token by token.
    """
    chosen = choose("wkv", k, v, implementation=implementation)
    expect_array("k", k, ("B", "N", "E"), "floating")
    batch, length, channels = k.shape
    expect_array("v", v, k.shape, "floating")
    expect_array("log_decay", log_decay, (channels,), "floating")
    expect_array("bonus", bonus, (channels,), "floating")
    rows = (batch, channels)
    expect_state(initial_state, numerator=rows, denominator=rows, exponent=rows)
    default = CHUNK_ON_GPU if platform_of([v]) == "gpu" else CHUNK
    chunk_size = even_chunks(length, expect_chunk_size(chunk_size, default))

    dtype = accumulation_dtype(v)
    state = initial_state or init_wkv_state(batch, channels, dtype)
    call = continue_from(initial_state, batch, length, segment_ids, mask)
    tokens = cast(call.unpadded((k, v)), dtype)
    step = functools.partial(_chunk, log_decay.astype(dtype), bonus.astype(dtype))
    if chosen == "reference":
        step, chunk_size = functools.partial(_token, *step.args), 1

    def run(sums: Sums) -> tuple[Array, Sums]:
        return scan_chunks(step, sums, tokens, chunk_size=chunk_size, start=call.start, mask=mask)

    sums = cast((state.numerator, state.denominator, state.exponent), dtype)
    if call.follows_shards:
        steps = call.count[:, None] * log_decay.astype(dtype)
        steps = jnp.where(call.stays[:, None], steps, EMPTY)
        own, empty = (*run(sums)[1], steps), (*sums, jnp.zeros_like(steps))
        sums = sharding.scan_before(_add, own, empty)[:3]
    y, sums = run(sums)
    y = y.astype(v.dtype)
    return (y, WKVState(*sums, call.after)) if return_state else y


def _chunk(
    log_decay: Array, bonus: Array, sums: Sums, tokens: Any, start: Array | None, mask: Array | None
) -> tuple[Array, Sums]:
    """Process a chunk: first the exponents as a tree, then the sums relative to them, a linear recurrence."""
    k, v = tokens
    numerator, denominator, exponent = sums
    steps, keys = jnp.broadcast_to(log_decay, k.shape), k
    begins, real = None, None if mask is None else mask[..., None]
    if start is not None:
        begins = (start == jnp.arange(k.shape[1]))[..., None]
        steps = jnp.where(begins, EMPTY, steps)
    if real is not None:
        steps, keys = jnp.where(real, steps, 0), jnp.where(real, k, EMPTY)
    # The reference exponents only need about the right size, so they get no gradient.
    top = keys.at[:, 0].set(jnp.maximum(exponent + steps[:, 0], keys[:, 0]))
    top = lax.associative_scan(_longest, lax.stop_gradient((steps, top)), axis=1)[1]
    before = jnp.concatenate([exponent[:, None], top[:, :-1]], axis=1)

    old, new = jnp.exp((before - top) + steps), jnp.exp(keys - top)
    if real is not None:
        new = jnp.where(real, new, 0)
    pair = jnp.stack([numerator, denominator], axis=1)
    added = jnp.stack([new * v, new], axis=2).at[:, 0].add(old[:, 0, None] * pair)
    after = scan_along(jnp.broadcast_to(old[:, :, None], added.shape), added)
    past = jnp.concatenate([pair[:, None], after[:, :-1]], axis=1)
    past = (past[:, :, 0], past[:, :, 1], before)
    if begins is not None:
        past = select(begins, (0, 0, EMPTY), past)
    return _read(past, bonus, k, v), (after[:, -1, 0], after[:, -1, 1], top[:, -1])


def _add(earlier: Any, later: Any) -> Any:
    """Merge the sums over neighbouring shards, each with the log-decay of its tokens."""
    (*old, exponent1, steps1), (*new, exponent2, steps2) = earlier, later
    top = lax.stop_gradient(jnp.maximum(exponent1 + steps2, exponent2))
    of_old, of_new = jnp.exp(exponent1 + steps2 - top), jnp.exp(exponent2 - top)
    sums = (of_old * x + of_new * y for x, y in zip(old, new, strict=True))
    return *sums, top, jnp.maximum(steps1 + steps2, EMPTY)


def _token(
    log_decay: Array, bonus: Array, sums: Sums, tokens: Any, start: Array | None, mask: Array | None
) -> tuple[Array, Sums]:
    """Take one step of the recurrence of RWKV's code, for chunks of one token."""
    k, v = (x[:, 0] for x in tokens)
    if start is not None:
        sums = select(start == 0, (0, 0, EMPTY), sums)
    numerator, denominator, exponent = sums
    y = _read(sums, bonus, k, v)
    top = jnp.maximum(exponent + log_decay, k)
    old, new = jnp.exp((exponent - top) + log_decay), jnp.exp(k - top)
    after = (old * numerator + new * v, old * denominator + new, top)
    if mask is not None:
        after = select(mask, after, sums)
    return y[:, None], after


def _read(past: Sums, bonus: Array, k: Array, v: Array) -> Array:
    """Return the average over the past sums and the token itself."""
    numerator, denominator, exponent = past
    top = jnp.maximum(exponent, k + bonus)
    # Keep this order, here and below: exponents near 1e4 are multiples of 1e-3 in float32, but differences of
    # close exponents are exact.
    old, new = jnp.exp(exponent - top), jnp.exp((k - top) + bonus)
    return (old * numerator + new * v) / (old * denominator + new)


def _longest(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the larger exponent of two neighbouring spans of tokens, the first decayed over the second."""
    (steps1, exponent1), (steps2, exponent2) = first, second
    return steps1 + steps2, jnp.maximum(exponent1 + steps2, exponent2)
