"""Ring buffers, one per row, of a mixer's last W tokens; and checks of a state's capacity.

The token with index p (counted over calls, per row) is in slot p mod W, so a step writes one slot, and rows
of one batch may have different lengths.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from based_jax.ops.core import value_checks
from based_jax.ops.core.stream import Stream, TokenPositions
from based_jax.typing import Array, Bool, Int
from based_jax.validate import expect, expect_array


def put(ring: Array, values: Array, positions: TokenPositions, stream: Stream) -> Array:
    """Write the real tokens of one call into their slots; of more than W only the last W stay.

    Args:
        ring: (B, W, ...).
        values: (B, N, ...), of the tokens at `positions`.
        stream: the stream after this call.
    """
    batch, length = values.shape[:2]
    slots = ring.shape[1]
    index = jnp.broadcast_to(positions.index, (batch, length))
    stays = index >= (stream.length - slots)[:, None]
    if positions.mask is not None:
        stays &= positions.mask
    slot = jnp.where(stays, index % slots, slots)  # slot W is out of range: those writes are dropped
    rows = jnp.arange(batch)[:, None]
    return ring.at[rows, slot].set(values.astype(ring.dtype), mode="drop", unique_indices=False)


def latest(ring: Array, length: Int[Array, " B"], count: int) -> tuple[Array, Int[Array, "B count"]]:
    """Return the last `count` <= W tokens of each row in order, and their indices (negative: none)."""
    index = length[:, None] - count + jnp.arange(count)
    slot = (index % ring.shape[1]).reshape(*index.shape, *[1] * (ring.ndim - 2))
    return jnp.take_along_axis(ring, slot, axis=1), index


def expect_capacity(
    before: Stream | None, length: int, mask: Bool[Array, "B N"] | None, capacity: int, what: str
) -> None:
    """Check that no row has more than `capacity` tokens after a call, as far as lengths are known.

    Args:
        before: the stream before the call; None if there is none.
        length: tokens of the call.
        mask: False for padding, which needs no capacity.
        capacity: maximum tokens of a row; `what` describes it in the message.

    Raises:
        TypeError, ValueError: an invalid mask, or a row that is too long.
    """
    if mask is not None:
        expect_array("mask", mask, ("B", length), "bool")
    used = np.zeros(1, int) if before is None else before.length
    new = np.asarray(length) if mask is None else mask
    if mask is None:  # regardless of earlier tokens
        expect(length <= capacity, "length", length, f"at most {what}")
    value_checks.expect_at_most(capacity, "length", f"at most {what}", _longest, used, new)


def _longest(numpy: Any, used: Any, new: Any) -> Any:
    """Return the length of the longest row; `new` is a number or a mask."""
    return numpy.max(used + (numpy.sum(new, axis=1) if new.ndim else new))
