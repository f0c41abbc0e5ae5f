"""Read a batch's rows from a shard: windows of its documents, packed as stored or in another order.

Packing in another order moves no token. It takes two numbers per document: where the document begins in that
order, and the offset from there to where it is stored. The rows of a batch are then one gather.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt

from based_jax.data.packed import PackedTokens
from based_jax.data.shards.permutation import permuted


class Packing(NamedTuple):
    """An order of a shard's documents."""

    begins: Int64[np.ndarray, " n"]  # position of each document's EOT in that order, increasing
    shifts: Int64[np.ndarray, " n"] | None  # offset from there to the stored position; None: all 0


def pack_as_stored(shard: PackedTokens) -> Packing:
    """Return the packing in stored order, without reading documents."""
    return Packing(shard.starts, None)


def pack_permuted(shard: PackedTokens, key: int) -> Packing:
    """Return the packing in the order of a permutation; it takes 16 bytes per document."""
    starts = np.asarray(shard.starts)
    order = permuted(np.arange(starts.size), starts.size, key)
    sizes = np.diff(starts, append=len(shard) - 1)[order]
    begins = np.cumsum(sizes) - sizes
    return Packing(begins, starts[order] - begins)


def read_tokens(
    shard: PackedTokens, packing: Packing, windows: Int64[np.ndarray, " k"], length: int
) -> UInt[np.ndarray, "k m"]:
    """Return the tokens of windows, m = `length` + 1 of each: its inputs and the last target."""
    begins = windows * length
    if packing.shifts is None:
        return np.stack([shard.tokens[begin : begin + length + 1] for begin in begins.tolist()])
    # The stream's final EOT belongs to no document. It is read as one more token of the last document, whose
    # stored tokens are followed by an EOT as well.
    first = np.searchsorted(packing.begins, begins, side="right") - 1
    row, document = _ranges(first, np.searchsorted(packing.begins, begins + length + 1))
    column = np.maximum(packing.begins[document] - begins[row], 0)
    counts = np.diff(row * (length + 1) + column, append=windows.size * (length + 1))
    index = np.repeat(packing.shifts[document], counts).reshape(-1, length + 1)
    index += begins[:, None]
    index += np.arange(length + 1)
    return shard.tokens.take(index)


def read_segments(
    packing: Packing, windows: Int64[np.ndarray, " k"], length: int
) -> Int32[np.ndarray, "k n"]:
    """Return `segment_ids` of windows, from 1, as in `PackedTokens.window`; n = `length`."""
    begins = windows * length
    # A window's first token is in segment 1 whether or not it is an EOT, so only later starts count.
    first, last = (np.searchsorted(packing.begins, begins + ends) for ends in (1, length))
    row, document = _ranges(first, last)
    changes = np.zeros((windows.size, length), np.int32)
    changes[:, 0] = 1
    changes[row, packing.begins[document] - begins[row]] = 1
    return np.cumsum(changes, axis=1, dtype=np.int32)


def _ranges(
    first: Int64[np.ndarray, " k"], last: Int64[np.ndarray, " k"]
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Concatenate the ranges `first` to `last` (exclusive); return them and each entry's range index."""
    counts = last - first
    which = np.repeat(np.arange(counts.size), counts)
    return which, np.arange(which.size) + (first - (np.cumsum(counts) - counts))[which]
