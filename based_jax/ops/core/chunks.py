"""Scan a sequence in chunks from a state: the loop of every op with a running sum.

Inside a chunk an op works on all pairs of its tokens; between chunks it carries a state of fixed size. This
module computes the visibility with packed documents or padding for all ops.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import accumulation_dtype, checkpoint, map_arrays, map_pairs
from based_jax.typing import Array, Bool, Float, Int

S = TypeVar("S")
Y = TypeVar("Y")

Step = Callable[[Any, Any, Int[Array, "B C"] | None, Bool[Array, "B C"] | None], tuple[Any, Any]]
"""state, a chunk of the inputs, `start`, `mask` -> outputs (B, C, ...), the state after the chunk"""


def scan_chunks(
    step: Step,
    state: Any,
    inputs: Any,
    *,
    chunk_size: int,
    start: Int[Array, "rows N"] | None,
    mask: Bool[Array, "B N"] | None,
) -> tuple[Any, Any]:
    """Scan `step` over chunks; return outputs and final state. The backward pass recomputes each chunk.

    Args:
        step: see `Step`; its `start` is relative to the chunk's first token.
        state: state before the first token.
        inputs: a pytree of (B, N, ...) arrays.
        chunk_size: C; a shorter sequence is one chunk of its own length.
        start: as in `Continuation`; None if all tokens are in the first token's segment.
        mask: True for real tokens; the padding of the last chunk is masked too.

    Returns:
        A pytree of (B, N, ...) outputs, and the state.
    """
    length = jax.tree.leaves(inputs)[0].shape[1]
    chunked = split_chunks(inputs, start, mask, chunk_size)

    def body(state: Any, chunk: Any) -> tuple[Any, Any]:
        y, state = step(state, *chunk)
        return state, y

    if length <= chunk_size:
        state, y = body(state, map_arrays(lambda x: x[0], chunked))
        return y, state
    state, y = lax.scan(checkpoint(body, prevent_cse=False), state, chunked)

    return map_arrays(lambda x: join_tokens(x, length), y), state


def split_chunks(
    inputs: Any, start: Int[Array, "rows N"] | None, mask: Bool[Array, "B N"] | None, chunk_size: int
) -> tuple[Any, Int[Array, "chunks B C"] | None, Bool[Array, "chunks B C"] | None]:
    """Split `inputs`, `start`, then relative to each chunk, and `mask`; see `scan_chunks`."""
    batch, length = jax.tree.leaves(inputs)[0].shape[:2]
    chunk_size = min(chunk_size, length)
    chunks = -(-length // chunk_size)
    if length % chunk_size and mask is None:
        mask = jnp.ones((batch, length), bool)

    def split(x: Array, mode: str = "constant") -> Array:
        return split_tokens(x, chunk_size, mode=mode)

    if start is not None:
        first = chunk_size * jnp.arange(chunks)[:, None, None]
        start = split(jnp.broadcast_to(start, (batch, length)), "edge") - first
    return jax.tree.map(split, inputs), start, None if mask is None else split(mask)


def map_chunks(function: Callable[..., Y], inputs: Any, chunk_size: int, *whole: Any) -> Y:
    """Apply a function to chunks of the tokens' inputs; the backward pass recomputes each chunk.

    Args:
        function: chunk of `inputs`, and `whole` -> outputs.
        whole: trees of floating-point arrays that every chunk reads; their gradients are summed in float32.
    """
    if jax.tree.leaves(inputs)[0].shape[1] <= chunk_size:
        return function(inputs, *whole)
    # A scan sums the gradients of what it closes over in its dtype.
    wide = map_arrays(lambda x: x.astype(accumulation_dtype(x)), whole)

    def step(nothing: None, chunk: Any, start: Any, mask: Any) -> tuple[Any, None]:
        return function(chunk, *map_pairs(lambda x, like: x.astype(like.dtype), wide, whole)), nothing

    return scan_chunks(step, None, inputs, chunk_size=chunk_size, start=None, mask=None)[0]


def pad_tokens(x: Array, after: int, before: int = 0, **how: Any) -> Array:
    """Pad x, (B, N, ...), by tokens at both ends, by `jnp.pad`."""
    return jnp.pad(x, [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2), **how)


def split_tokens(x: Array, size: int, **how: Any) -> Array:
    """Split (B, N, ...) into (chunks, B, C, ...), padded at the end."""
    chunks = -(-x.shape[1] // size)
    x = pad_tokens(x, -x.shape[1] % size, **how) if x.shape[1] % size else x
    return x.reshape(x.shape[0], chunks, size, *x.shape[2:]).swapaxes(0, 1)


def join_tokens(x: Array, length: int) -> Array:
    """Invert `split_tokens`."""
    chunks, batch, size, *rest = x.shape
    return x.swapaxes(0, 1).reshape(batch, chunks * size, *rest)[:, :length]


def begins(start: Int[Array, "rows N"] | None, batch: int, length: int) -> Bool[Array, "B N"]:
    """Return which tokens are the first of a segment that does not begin before the call."""
    first = jnp.zeros((), bool) if start is None else start == jnp.arange(length)
    return jnp.broadcast_to(first, (batch, length))


class ChunkMask(NamedTuple):
    """Visibility within a chunk and of the state before it. Batch first, an axis of size 1 per head axis."""

    visible: Bool[Array, "... C C"]
    """key j to query i"""
    reads: Bool[Array, "... C"] | None
    """queries that see the state; None: all"""
    enters: Bool[Array, "... C"] | None
    """keys that are part of the state after the chunk; None: all"""
    keeps: Bool[Array, "..."] | None
    """rows whose old state is part of the state after the chunk; None: all"""

    def kept(self, state: Float[Array, "... K V"]) -> Float[Array, "... K V"]:
        """Return the old state with zeros in the rows that forget it."""
        return state if self.keeps is None else jnp.where(self.keeps[..., None, None], state, 0)

    def entering(self, x: Float[Array, "... C K"]) -> Float[Array, "... C K"]:
        """Return x with zeros at keys that do not enter the state."""
        return x if self.enters is None else jnp.where(self.enters[..., None], x, 0)

    def reading(self, x: Float[Array, "... C K"]) -> Float[Array, "... C K"]:
        """Return reads of the state (maybe infinite), with zeros at queries that do not see it."""
        return x if self.reads is None else jnp.where(self.reads[..., None], x, 0)


def chunk_mask(
    size: int,
    start: Int[Array, "B C"] | None,
    mask: Bool[Array, "B C"] | None,
    head_axes: int = 1,
    diagonal: bool = True,
) -> ChunkMask:
    """Return the visibility in a chunk for a `Step`'s start and mask; `diagonal`: a token sees itself."""

    def lift(x: Array) -> Array:
        return x.reshape(x.shape[0], *[1] * head_axes, *x.shape[1:])

    visible = lift(jnp.tri(size, k=0 if diagonal else -1, dtype=bool)[None])
    reads = enters = keeps = None
    if start is not None:
        visible = visible & lift(jnp.arange(size) >= start[:, :, None])
        last = start[:, -1:]
        reads, enters, keeps = lift(start < 0), lift(jnp.arange(size) >= last), lift(last[:, 0] < 0)
    if mask is not None:
        real = lift(mask)
        visible = visible & real[..., None, :]
        enters = real if enters is None else enters & real
    return ChunkMask(visible, reads, enters, keeps)


def heads_first(x: Float[Array, "B N H D"]) -> Float[Array, "B H N D"]:
    """Swap axes: (B, N, H, D) <-> (B, H, N, D)."""
    return x.swapaxes(1, 2)


def scan_tokens(step: Callable[[S, Any], tuple[S, Array]], state: S, inputs: Any) -> tuple[Array, S]:
    """Scan `step` over the tokens of `inputs`, (B, N, ...) arrays; return outputs and final state."""

    state, y = lax.scan(step, state, map_arrays(lambda x: x.swapaxes(0, 1), inputs))
    return y.swapaxes(0, 1), state
