"""Rows of a batch from a shard: windows of its documents, packed as stored or in another order.

Packing another order moves no token. It is two numbers per document: where the document begins in that order,
and how far from there it is stored. The rows of a batch are then one gather.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, UInt

from based_jax.data.packed import PackedTokens
from based_jax.data.shards.permutation import permuted


class Packing(NamedTuple):
    """An order of a shard's documents."""

    begins: Int64[np.ndarray, " n"]  # where each document's EOT is in that order, increasing
    shifts: Int64[np.ndarray, " n"] | None  # what to add for where it is stored; None: all 0


def pack_as_stored(shard: PackedTokens) -> Packing:
    """The order in which the documents are stored; reads none of them."""
    return Packing(shard.starts, None)


def pack_permuted(shard: PackedTokens, key: int) -> Packing:
    """The documents in the order of a permutation; 16 bytes per document."""
    starts = np.asarray(shard.starts)
    order = permuted(np.arange(starts.size), starts.size, key)
    sizes = np.diff(starts, append=len(shard) - 1)[order]
    begins = np.cumsum(sizes) - sizes
    return Packing(begins, starts[order] - begins)


def read_tokens(
    shard: PackedTokens, packing: Packing, windows: Int64[np.ndarray, " k"], length: int
) -> UInt[np.ndarray, "k m"]:
    """The tokens of these windows, m = `length` + 1 of each: its inputs and the last target."""
    begins = windows * length
    if packing.shifts is None:
        return np.stack([shard.tokens[begin : begin + length + 1] for begin in begins.tolist()])
    # The stream's final EOT is of no document: it is taken for a token of the last one, after whose own last
    # token an EOT is stored, too.
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
    """`segment_ids` of these windows, from 1, as `PackedTokens.window` numbers them; n = `length`."""
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
    """All numbers from each `first` up to its `last`, without it, and which range each one is of."""
    counts = last - first
    which = np.repeat(np.arange(counts.size), counts)
    return which, np.arange(which.size) + (first - (np.cumsum(counts) - counts))[which]
