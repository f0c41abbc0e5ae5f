"""The order of windows in training from shards: computed from a row's number, nothing of it is stored.

Rows are numbered 0, 1, 2, ... over all epochs. Epoch e permutes the shards and takes them in groups of
`GROUP`; within a group, its windows are permuted, whichever shard they are of. So a batch mixes windows of a
group, the memory is that of a group, and a run continues at any row by computing where it is. All of it is
decided by the seed, the epoch and the shards' numbers of windows.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from based_jax.data.shards.permutation import make_key, permuted

GROUP = 16
"""Shards whose windows are mixed with each other."""

_SHARDS, _WINDOWS = 0, 1  # what a key is for


class Places(NamedTuple):
    """Where rows are, one entry per row."""

    epoch: Int64[np.ndarray, " n"]
    shard: Int64[np.ndarray, " n"]
    window: Int64[np.ndarray, " n"]  # of the shard, as it is packed in that epoch


@dataclass(frozen=True, eq=False)
class Order:
    """An endless order of the windows of shards, each exactly once an epoch."""

    counts: Int64[np.ndarray, " shards"]  # windows of each shard, at least one in all
    seed: int

    @functools.cached_property
    def windows(self) -> int:
        """Windows of an epoch."""
        return int(self.counts.sum())

    def group_after(self, row: int) -> tuple[int, ...]:
        """The shards of the group that comes after that of a row."""
        epoch, offset = divmod(row, self.windows)
        order, ends = self._epoch(epoch)
        group = int(np.searchsorted(ends, offset, side="right")) + 1
        if group == ends.size:
            order, group = self._epoch(epoch + 1)[0], 0
        return tuple(order[group * GROUP : (group + 1) * GROUP].tolist())

    def places(self, rows: Int64[np.ndarray, " n"]) -> Places:
        """Where these rows are, by their numbers; those of a batch, which are near each other, are cheap."""
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
        return Places(epochs, shards, windows)

    @functools.cached_property
    def _epoch(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        return functools.lru_cache(maxsize=2)(self._compute_epoch)  # a batch may end one and begin the next

    def _compute_epoch(self, epoch: int) -> tuple[Int64[np.ndarray, " shards"], Int64[np.ndarray, " groups"]]:
        """The shards in the epoch's order, and how many windows there are up to the end of each group."""
        count = self.counts.size
        order = permuted(np.arange(count), count, make_key(self.seed, epoch, _SHARDS))
        sizes = np.add.reduceat(self.counts[order], np.arange(0, count, GROUP))
        return order, np.cumsum(sizes)
