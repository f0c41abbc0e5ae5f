"""A ring of slots per row: what a mixer keeps of its last W tokens, and how many tokens a state may meet.

The token with index p (counted over calls, per row) lives in slot p mod W, so a step writes one slot, and
rows of one batch may be at different lengths.
"""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from based_jax.ops.stream import Places, Stream
from based_jax.typing import Array, Bool, Int
from based_jax.validate import expect, expect_array


def put(ring: Array, values: Array, places: Places, stream: Stream) -> Array:
    """Put the real tokens of one call into their slots; of more than W only the last W stay.

    Args:
        ring: (B, W, ...).
        values: (B, N, ...) of the tokens at `places`.
        stream: behind this call.
    """
    batch, length = values.shape[:2]
    slots = ring.shape[1]
    index = jnp.broadcast_to(places.index, (batch, length))
    stays = index >= (stream.length - slots)[:, None]
    if places.mask is not None:
        stays &= places.mask
    slot = jnp.where(stays, index % slots, slots)  # slot W does not exist: those writes are dropped
    rows = jnp.arange(batch)[:, None]
    return ring.at[rows, slot].set(values.astype(ring.dtype), mode="drop", unique_indices=False)


def latest(ring: Array, length: Int[Array, " B"], count: int) -> tuple[Array, Int[Array, "B count"]]:
    """The last `count` <= W of each row's `length` tokens in order, and their indices (negative: none)."""
    index = length[:, None] - count + jnp.arange(count)
    slot = (index % ring.shape[1]).reshape(*index.shape, *[1] * (ring.ndim - 2))
    return jnp.take_along_axis(ring, slot, axis=1), index


def expect_room(
    before: Stream | None, length: int, mask: Bool[Array, "B N"] | None, room: int, what: str
) -> None:
    """Check that no row of a call has more than `room` tokens in all, as far as that is known outside `jit`.

    Args:
        before: the stream before the call; None is behind nothing.
        length: tokens of the call.
        mask: padding, which takes no room.
        room: tokens that a row may have; `what` says what for.

    Raises:
        TypeError, ValueError: a mask that is none; a row that is too long.
    """
    if mask is not None:
        expect_array("mask", mask, ("B", length), "bool")
    used = _concrete(None if before is None else before.length, 0)
    new = length if mask is None else _concrete(mask, np.zeros((1, 1), int)).sum(axis=1)
    longest = int(np.max(used + new))
    expect(longest <= room, "length", longest, f"at most {what}")


def _concrete(array, otherwise):
    """The array's values where they are known; NumPy's, because jnp would trace even those under `jit`."""
    return otherwise if array is None or isinstance(array, Tracer) else np.asarray(array)
