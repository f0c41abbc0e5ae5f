"""Make training batches from shards, with random access to the rows of a shuffled epoch."""

import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import PackedTokens, TokenStream
from based_jax.data.shards.permutation import make_key
from based_jax.data.shards.rows import Packing, pack_as_stored, pack_permuted, read_segments, read_tokens
from based_jax.data.shards.shuffle import GROUP, Order

SHUFFLES = ("documents", "windows")
"""What is permuted: documents before packing, then windows; or only the windows of the stored order."""

_DOCUMENTS = 2  # purpose of a key; see `order`
_BLOCK = 256  # rows to read together, so that each shard of a group contributes several


class Rows(Protocol):
    """An endless sequence of rows for training."""

    def read(self, rows: Int64[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """Return inputs, targets and, if documents are separate, segment_ids of rows: int32 (n, length)."""
        ...


@dataclass(frozen=True, eq=False)
class ShuffledWindows:
    """The full windows of a stream, reshuffled in every epoch."""

    stream: TokenStream
    length: int
    seed: int
    shuffle: str  # of `SHUFFLES`
    cross_documents: bool = False

    @functools.cached_property
    def order(self) -> Order:
        """Return the order of the windows; nonempty if the stream has a window."""
        return Order((self.stream.sizes - 1) // self.length, self.seed)

    def read(self, rows: Int64[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Rows.read`; packs a shard when its first row is read."""
        positions = self.order.positions(rows)
        names = ("inputs", "targets") if self.cross_documents else ("inputs", "targets", "segment_ids")
        batch = {name: np.empty((rows.size, self.length), np.int32) for name in names}
        sources, which = np.unique(np.stack([positions.epoch, positions.shard]), axis=1, return_inverse=True)
        for number, (epoch, shard) in enumerate(sources.T.tolist()):
            mine = np.flatnonzero(which == number)
            windows = positions.window[mine]
            packed, packing = self._packed(epoch, shard)
            tokens = read_tokens(packed, packing, windows, self.length)
            batch["inputs"][mine], batch["targets"][mine] = tokens[:, :-1], tokens[:, 1:]
            if not self.cross_documents:
                batch["segment_ids"][mine] = read_segments(packing, windows, self.length)
        self._check_ahead(self.order.group_after(int(rows[-1])))
        return batch

    @functools.cached_property
    def _check_ahead(self) -> Callable[[tuple[int, ...]], threading.Thread]:
        return functools.lru_cache(maxsize=1)(self._start_check)

    def _start_check(self, shards: tuple[int, ...]) -> threading.Thread:
        """Start to check shards in a thread, which takes seconds, before training reaches them."""

        def check() -> None:
            for number in shards:
                with contextlib.suppress(ValueError, OSError):  # raised again when a row of it is read
                    self.stream.shard(number)

        thread = threading.Thread(target=check, name="check-shards", daemon=True)
        thread.start()
        return thread

    @functools.cached_property
    def _packed(self) -> Callable[[int, int], tuple[PackedTokens, Packing]]:
        # A batch may span two groups.
        return functools.lru_cache(maxsize=2 * GROUP)(self._pack)

    def _pack(self, epoch: int, number: int) -> tuple[PackedTokens, Packing]:
        shard = self.stream.shard(number)
        if self.shuffle == "windows":
            return shard, pack_as_stored(shard)
        return shard, pack_permuted(shard, make_key(self.seed, epoch, _DOCUMENTS, number))


@dataclass(frozen=True, eq=False)
class Batches:
    """One process's batches of rows, as a random-access source for Grain."""

    rows: Rows
    batch_size: int  # of this process
    shard_index: int
    shard_count: int

    def __len__(self) -> int:
        return 1 << 40  # more than there are steps in any run

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        block, offset = divmod(int(index), self._batches_per_block)
        part = slice(offset * self.batch_size, (offset + 1) * self.batch_size)
        return {name: array[part] for name, array in self._block(block).items()}

    @property
    def _batches_per_block(self) -> int:
        return -(-_BLOCK // self.batch_size)

    @functools.cached_property
    def _block(self) -> Callable[[int], dict[str, np.ndarray]]:
        return functools.lru_cache(maxsize=1)(self._read_block)

    def _read_block(self, block: int) -> dict[str, np.ndarray]:
        count = self._batches_per_block
        batches = np.arange(block * count, (block + 1) * count) * self.shard_count + self.shard_index
        return self.rows.read((batches[:, None] * self.batch_size + np.arange(self.batch_size)).reshape(-1))
