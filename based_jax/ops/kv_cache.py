"""Keys and values kept between calls: a ring of `left + 1` slots for a window, all of them otherwise.

A window's cache stays as long as the window however long the text grows.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops.ring import latest, put
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
    return KVCache(put(cache.k, k, places, stream), put(cache.v, v, places, stream), stream)


def recent(cache: KVCache, count: int) -> tuple[Array, Array, Int[Array, "B count"]]:
    """The last `count` <= W keys and values in order, and their indices (negative: not there yet)."""
    k, index = latest(cache.k, cache.stream.length, count)
    return k, latest(cache.v, cache.stream.length, count)[0], index
