"""Key/value cache: a ring buffer of `left + 1` slots for a window, otherwise slots for all tokens.

The size of a window's cache does not depend on the length of the text.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.ops.core.arrays import append, lift, map_arrays, set_rows
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.ops.core.op import expect_at_most, expect_state
from based_jax.ops.core.stream import Continuation, Stream, TokenPositions, init_stream
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect, expect_array, expect_integer


def put(ring: Array, values: Array, positions: TokenPositions, stream: Stream) -> Array:
    """Write the real tokens of one call, values (B, N, ...), into the ring, (B, W, ...); the last W stay.

    `stream` is the one after the call.
    """
    batch, length = values.shape[:2]
    slots = ring.shape[1]
    index = jnp.broadcast_to(positions.index, (batch, length))
    stays = index >= (stream.length - slots)[:, None]
    if positions.mask is not None:
        stays &= positions.mask
    slot = jnp.where(stays, index % slots, slots)  # slot W is out of range: those writes are dropped
    return set_rows(ring, slot, values.astype(ring.dtype))


def latest(ring: Array, length: Int[Array, " B"], count: int) -> tuple[Array, Int[Array, "B count"]]:
    """Return the last `count` <= W tokens of each row in order, and their indices (negative: none)."""
    index = length[:, None] - count + jnp.arange(count)
    slot = (index % ring.shape[1]).reshape(*index.shape, *[1] * (ring.ndim - 2))
    return jnp.take_along_axis(ring, slot, axis=1), index


def expect_capacity(
    before: Stream | None, length: int, mask: Bool[Array, "B N"] | None, capacity: int, what: str
) -> None:
    """Check that no row has more than `capacity` tokens (in messages `what`) after a call of `length`.

    As far as lengths are known: `before` is the stream before the call, or None.
    """
    if mask is not None:
        expect_array("mask", mask, ("B" if before is None else before.length.shape[0], length), "bool")
    used = np.zeros(1, int) if before is None else before.length
    new = np.asarray(length) if mask is None else mask
    if mask is None:  # regardless of earlier tokens
        expect(length <= capacity, "length", length, f"at most {what}")
    expect_at_most(capacity, "length", f"at most {what}", _longest, used, new)


def _longest(numpy: Any, used: Any, new: Any) -> Any:
    """Return the length of the longest row; `new` is a number or a mask."""
    return numpy.max(used + (numpy.sum(new, axis=1) if new.ndim else new))


T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys (after rotary embedding) and values of the last W tokens of each row."""

    k: Float[Array, "B W G K"]
    v: Float[Array, "B W G V"]
    stream: Stream

    @property
    def slots(self) -> int:
        """W, the capacity in tokens."""
        return self.k.shape[1]


def init_kv_cache(
    batch_size: int, slots: int, kv_heads: int, key_size: int, value_size: int, dtype: Any = jnp.float32
) -> KVCache:
    """Return an empty cache."""
    return KVCache(
        k=jnp.zeros((batch_size, slots, kv_heads, key_size), dtype),
        v=jnp.zeros((batch_size, slots, kv_heads, value_size), dtype),
        stream=init_stream(batch_size),
    )


def slot_index(length: Int[Array, " B"], slots: int) -> Int[Array, "B W"]:
    """Return the index of the token in each slot after `length` tokens; negative in empty slots."""
    newest = length[:, None] - 1
    return newest - (newest - jnp.arange(slots)) % slots


def write(cache: KVCache, k: Array, v: Array, positions: TokenPositions, stream: Stream) -> KVCache:
    """Write the real tokens of one call into their slots; of more than W only the last W stay."""
    return KVCache(put(cache.k, k, positions, stream), put(cache.v, v, positions, stream), stream)


def recent(cache: KVCache, count: int) -> tuple[Array, Array, Int[Array, "B count"]]:
    """Return the last `count` <= W keys and values in order, and their indices (negative: empty slots)."""
    k, index = latest(cache.k, cache.stream.length, count)
    return k, latest(cache.v, cache.stream.length, count)[0], index


def keys_after(
    cache: KVCache, written: KVCache, k: Array, v: Array, call: Continuation, left: int | None
) -> tuple[Array, Array, Int[Array, "B M"]]:
    """Return the keys and values that a call sees, and their indices (negative: none).

    Those of `written`, the cache after the call; in a window those before the call and its own.
    """
    if left is None or k.shape[1] == 1:
        return written.k, written.v, slot_index(call.after.length, cache.slots)
    return append(recent(cache, left), (k, v, jnp.broadcast_to(call.key_index, k.shape[:2])))


def expect_cache(
    cache: KVCache | None,
    sizes: tuple[int, ...],
    *,
    causal: bool,
    left: int | None,
    return_state: bool,
    mask: Bool[Array, "B N"] | None,
) -> None:
    """Check a cache to continue from, for keys and values of `sizes` B, N, G, K, V, and the op's arguments.

    Without a window the text must fit, if lengths are known (under `jit` outputs are NaN instead).
    """
    if left is not None:
        expect_integer("left", left, 0)
    expect(causal or left is None, "left", left, "None when causal is False")
    if cache is None:
        expect(not return_state, "return_state", return_state, "False without an initial_state to write to")
        return
    expect(causal, "causal", causal, "True with an initial_state")
    batch, length, heads, width, value_size = sizes
    expect(isinstance(cache, KVCache), "initial_state", type(cache).__name__, "a KVCache")
    expect_state(cache, k=(batch, "W", heads, width))
    expect_state(cache, v=(batch, cache.slots, heads, value_size))
    if left is None:
        what = f"max_length = {cache.slots} tokens, the size of the state"
        expect_capacity(cache.stream, length, mask, cache.slots, what)
    else:
        expect(cache.slots == left + 1, "slots of initial_state", cache.slots, f"left + 1 = {left + 1}")


def nan_where_outgrown(cache: Any, y: T) -> T:
    """Return a pytree of outputs, (B, ...), with NaN in rows that exceed the state's capacity, `slots`.

    The newest tokens of such a row have overwritten its oldest, so all its outputs are wrong.
    """
    fits = cache.stream.length <= cache.slots

    return map_arrays(lambda y: nan_unless(lift(fits, y), y), y)
