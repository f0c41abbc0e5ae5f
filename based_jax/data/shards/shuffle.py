"""Shuffle the windows of shards for training, by computing each row's position instead of storing an order.

Rows are numbered 0, 1, 2, ... over all epochs. Epoch e permutes the shards and takes them in groups of
`GROUP`; within a group the windows of all its shards are permuted. So a batch mixes the windows of a group,
memory is needed for one group, and a run can resume at any row. The order depends only on the seed, the
epoch and the shards' numbers of windows.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from based_jax.data.shards.permutation import make_key, permuted

GROUP = 16
"""Number of shards whose windows are mixed with each other."""

_SHARDS, _WINDOWS = 0, 1  # purpose of a key


class RowPositions(NamedTuple):
    """Positions of rows in the shards, one entry per row."""

    epoch: Int64[np.ndarray, " n"]
    shard: Int64[np.ndarray, " n"]
    window: Int64[np.ndarray, " n"]  # index in the shard as packed in that epoch


@dataclass(frozen=True, eq=False)
class Order:
    """An endless order of the windows of shards, each exactly once per epoch."""

    counts: Int64[np.ndarray, " shards"]  # windows of each shard; the sum is at least one
    seed: int

    @functools.cached_property
    def windows(self) -> int:
        """Return the number of windows in an epoch."""
        return int(self.counts.sum())

    def group_after(self, row: int) -> tuple[int, ...]:
        """Return the shards of the group that follows the one of `row`."""
        epoch, offset = divmod(row, self.windows)
        order, ends = self._epoch(epoch)
        group = int(np.searchsorted(ends, offset, side="right")) + 1
        if group == ends.size:
            order, group = self._epoch(epoch + 1)[0], 0
        return tuple(order[group * GROUP : (group + 1) * GROUP].tolist())

    def positions(self, rows: Int64[np.ndarray, " n"]) -> RowPositions:
        """Return the positions of rows, given their indices; cheap for the neighbouring rows of a batch."""
        epochs, offsets = np.divmod(rows, self.windows)
        shards, windows = np.empty_like(rows), np.empty_like(rows)
        for epoch in np.unique(epochs).tolist():
            order, ends = self._epoch(epoch)
            groups = np.where(epochs == epoch, np.searchsorted(ends, offsets, side="right"), -1)
            for group in np.unique(groups[groups >= 0]).tolist():
                mine = np.flatnonzero(groups == group)
                members = order[group * GROUP : (group + 1) * GROUP]
                member_ends = np.cumsum(self.counts[members])
                begin, size = int(ends[group] - member_ends[-1]), int(member_ends[-1])
                images = permuted(offsets[mine] - begin, size, make_key(self.seed, epoch, _WINDOWS, group))
                member = np.searchsorted(member_ends, images, side="right")
                shards[mine] = members[member]
                windows[mine] = images - (member_ends - self.counts[members])[member]
        return RowPositions(epochs, shards, windows)

    @functools.cached_property
    def _epoch(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        return functools.lru_cache(maxsize=2)(self._compute_epoch)  # a batch may span two epochs

    def _compute_epoch(self, epoch: int) -> tuple[Int64[np.ndarray, " shards"], Int64[np.ndarray, " groups"]]:
        """Return the shards in the epoch's order, and the cumulative number of windows of its groups."""
        count = self.counts.size
        order = permuted(np.arange(count), count, make_key(self.seed, epoch, _SHARDS))
        sizes = np.add.reduceat(self.counts[order], np.arange(0, count, GROUP))
        return order, np.cumsum(sizes)
