"""Keys and values kept between calls: a ring of `left + 1` slots for a window, all of them otherwise.

The token with index p (counted over calls, per row) lives in slot p mod W, so a window's cache stays as
long as the window however long the text grows, and rows of one batch may be at different lengths.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops.stream import Places, Stream, init_stream
from based_jax.typing import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys (after rotary) and values of the last W tokens of each row."""

    k: Float[Array, "B W G K"]
    v: Float[Array, "B W G V"]
    stream: Stream

    @property
    def slots(self) -> int:
        """W, the number of tokens that fit."""
        return self.k.shape[1]


def init_kv_cache(
    batch_size: int, slots: int, kv_heads: int, key_size: int, value_size: int, dtype: Any = jnp.float32
) -> KVCache:
    """An empty cache."""
    return KVCache(
        k=jnp.zeros((batch_size, slots, kv_heads, key_size), dtype),
        v=jnp.zeros((batch_size, slots, kv_heads, value_size), dtype),
        stream=init_stream(batch_size),
    )


def slot_index(length: Int[Array, " B"], slots: int) -> Int[Array, "B W"]:
    """Index of the token that each slot holds once a row has seen `length` tokens; negative where none."""
    newest = length[:, None] - 1
    return newest - (newest - jnp.arange(slots)) % slots


def write(cache: KVCache, k: Array, v: Array, places: Places, stream: Stream) -> KVCache:
    """Put the real tokens of one call into their slots; of more than W only the last W stay."""
    batch, length = k.shape[:2]
    slots = cache.slots
    index = jnp.broadcast_to(places.index, (batch, length))
    stays = index >= (stream.length - slots)[:, None]
    if places.mask is not None:
        stays &= places.mask
    slot = jnp.where(stays, index % slots, slots)  # slot W does not exist: those writes are dropped
    rows = jnp.arange(batch)[:, None]

    def put(into: Array, values: Array) -> Array:
        return into.at[rows, slot].set(values.astype(into.dtype), mode="drop", unique_indices=False)

    return KVCache(put(cache.k, k), put(cache.v, v), stream)


def recent(cache: KVCache, count: int) -> tuple[Array, Array, Int[Array, "B count"]]:
    """The last `count` <= W keys and values in order, and their indices (negative: not there yet)."""
    index = cache.stream.length[:, None] - count + jnp.arange(count)
    slot = (index % cache.slots)[..., None, None]
    return jnp.take_along_axis(cache.k, slot, axis=1), jnp.take_along_axis(cache.v, slot, axis=1), index
