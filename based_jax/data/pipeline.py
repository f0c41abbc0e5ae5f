"""Batch windows: endless, shuffled and resumable for training; each target exactly once for evaluation.

Several processes draw from one global order: with P processes, global batch k consists of the rows of process
0, then those of process 1, and so on: the rows that one process would draw with a batch P times as large.

Grain computes the order of rows instead of storing it, so that a run resumes at any batch, and draws the rows
of a mixture by weight.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from based_jax.data.packed import Mixture, PackedTokens, TokenStream
from based_jax.validate import expect, expect_range

Batch = dict[str, np.ndarray]
"""inputs, targets, segment_ids: int32 (batch_size, length); mask: bool (batch_size, length), False for
padding; absent from training batches, which have no padding."""

# For text in memory, threads would only compete for the interpreter's lock.
_IN_MEMORY = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
_FROM_FILES = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


class TrainIterator(grain.DatasetIterator[Batch]):
    """Endless training batches whose position in the data can be saved as JSON and restored.

    It is a Grain iterator, so Orbax can also save it with `grain.checkpoint.CheckpointSave`.
    """

    def __init__(self, batches: grain.DatasetIterator[Batch], data: dict[str, Any]) -> None:
        super().__init__(batches)
        self._batches = batches
        self._data = data

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return plain JSON values: the position in the stream of batches, and the stream's identity."""
        return {"place": self._batches.get_state(), "data": dict(self._data)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with the batch after the last one drawn when `state` was taken.

        Raises:
            ValueError: `state` belongs to other data, another seed or other sizes.
        """
        saved = state.get("data", {}) if isinstance(state, dict) else {}
        for key, value in self._data.items():
            found = saved.get(key)
            expect(found == value, f"state[{key!r}]", found, f"{value}, as this iterator has")
        self._batches.set_state(state["place"])


def train_iterator(
    stream: TokenStream | Mixture,
    *,
    length: int,
    batch_size: int,
    seed: int,
    cross_documents: bool = False,
    shard_index: int = 0,
    shard_count: int = 1,
) -> TrainIterator:
    """Iterate over endless batches of full windows, reshuffled in every epoch.

    The order depends only on the seed, the sizes of the stream's shards and `length`. A short window at a
    shard's end is not used, so no row has padding and batches have no mask. A batch may continue from one
    epoch into the next. Of a mixture, each source has its share of the rows and epochs of its own.

    Args:
        length: tokens per row.
        batch_size: rows per batch of this process.
        seed: of the shuffle, not negative.
        cross_documents: omit `segment_ids`, so that a model sees earlier documents in its window.
        shard_index: index of this process.

    Raises:
        ValueError: a value out of range, or no shard is as long as one window. While batches are drawn: a
            damaged shard.
    """
    _check_sizes(length, batch_size, shard_index, shard_count)
    expect(seed >= 0, "seed", seed, "not negative")
    parts = stream.parts if isinstance(stream, Mixture) else (stream,)
    for part in parts:
        needed = f"at least {length + 1} tokens, one window of length = {length} and its last target"
        has_window = part.num_windows(length, drop_last=True) > 0
        expect(has_window, "stream", f"{max(part.sizes, default=0)} tokens", needed)
    rows = [
        _shuffled(_Windows(part, length, cross_documents), (seed + n) % (1 << 32))
        for n, part in enumerate(parts)
    ]
    mixed = grain.MapDataset.mix(rows, stream.shares) if isinstance(stream, Mixture) else rows[0]
    identity = {"tokens": len(stream), "checksum": stream.checksum, "length": length}
    options = _IN_MEMORY if all(isinstance(part, PackedTokens) for part in parts) else _FROM_FILES
    return _batches(mixed, batch_size, {**identity, "seed": seed}, shard_index, shard_count, options)


def shuffled_batches(
    rows: grain.sources.RandomAccessDataSource[Batch], *, batch_size: int, seed: int, identity: dict[str, Any]
) -> TrainIterator:
    """Iterate over endless batches of any rows, reshuffled in every epoch, like `train_iterator`.

    Args:
        rows: at least one, in memory.
        batch_size, seed: as in `train_iterator`.
        identity: identifies the rows; an iterator's state can only be restored with the same identity.
    """
    return _batches(_shuffled(rows, seed), batch_size, {**identity, "seed": seed})


def _shuffled(rows: grain.sources.RandomAccessDataSource[Batch], seed: int) -> grain.MapDataset[Batch]:
    return grain.MapDataset.source(rows).seed(seed).shuffle().repeat(None)


def _batches(
    rows: grain.MapDataset[Batch],
    batch_size: int,
    identity: dict[str, Any],
    shard_index: int = 0,
    shard_count: int = 1,
    options: grain.ReadOptions = _IN_MEMORY,
) -> TrainIterator:
    # There is no remainder to drop, but without the argument Grain counts batches in floats, which overflows.
    batches = rows.batch(batch_size, drop_remainder=True).slice(slice(shard_index, None, shard_count))
    iterator = iter(batches.to_iter_dataset(options))
    return TrainIterator(iterator, {**identity, "global_batch_size": batch_size * shard_count})


def held_out_batches(
    stream: TokenStream,
    *,
    length: int,
    batch_size: int,
    cross_documents: bool = False,
    shard_index: int = 0,
    shard_count: int = 1,
) -> Iterator[Batch]:
    """Yield batches with every target of the stream's shards exactly once, in order.

    All batches have the same shape, and every process gets the same number of them: the last ones are filled
    up with rows whose mask is False. Count losses only where `mask` is True.

    Args and errors: as in `train_iterator`, but any stream is long enough.
    """
    _check_sizes(length, batch_size, shard_index, shard_count)
    count = stream.num_windows(length, drop_last=False)
    padding = stream.window(0, length)
    padding = {key: np.full_like(row, padding["inputs"][0]) for key, row in padding.items()}
    padding["segment_ids"][:] = 1
    padding["mask"][:] = False
    keys = [key for key in padding if not (cross_documents and key == "segment_ids")]

    def batch(first: int) -> Batch:
        numbers = range(first, first + batch_size)
        rows = [stream.window(i, length) if i < count else padding for i in numbers]
        return {key: np.stack([row[key] for row in rows]) for key in keys}

    firsts = range(0, count, batch_size * shard_count)
    return (batch(first + shard_index * batch_size) for first in firsts)


@dataclass(frozen=True)
class _Windows:
    """The full windows of a stream, without their masks, as a source for Grain."""

    stream: TokenStream
    length: int
    cross_documents: bool

    def __len__(self) -> int:
        return self.stream.num_windows(self.length, drop_last=True)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        window = self.stream.window(int(index), self.length, drop_last=True)
        left_out = ("mask", "segment_ids") if self.cross_documents else ("mask",)
        return {name: row for name, row in window.items() if name not in left_out}


def _check_sizes(length: int, batch_size: int, shard_index: int, shard_count: int) -> None:
    for name, size in (("length", length), ("batch_size", batch_size), ("shard_count", shard_count)):
        expect_range(name, size, 1)
    expect(0 <= shard_index < shard_count, "shard_index", shard_index, f"0 to {shard_count - 1}")
