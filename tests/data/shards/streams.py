"""Streams of documents whose tokens are all different."""

import functools
import itertools
import zlib
from dataclasses import dataclass

import numpy as np

from based_jax.data import PackedTokens
from based_jax.data.packed import TokenStream


@dataclass(frozen=True, eq=False)
class Several(TokenStream):
    """Shards in memory."""

    shards: tuple[PackedTokens, ...]

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        return np.array([len(shard) for shard in self.shards])

    @functools.cached_property
    def checksum(self) -> int:
        return zlib.crc32(repr([shard.checksum for shard in self.shards]).encode())

    num_bytes = 1

    def shard(self, number: int) -> PackedTokens:
        return self.shards[number]


def stream_of(sizes: list[int], first: int = 1) -> PackedTokens:
    """Documents of these sizes whose tokens are all different; EOT is 0."""
    documents = np.split(np.arange(first, first + sum(sizes)), np.cumsum(sizes)[:-1])
    tokens = np.concatenate([part for document in documents for part in ([0], document)] + [[0]])
    return PackedTokens(tokens.astype(np.uint32), np.cumsum([0, *(size + 1 for size in sizes[:-1])]), 1)


def several(sizes: list[list[int]]) -> Several:
    firsts = itertools.accumulate((sum(own) for own in sizes), initial=1)
    return Several(tuple(stream_of(own, first) for own, first in zip(sizes, firsts, strict=False)))


def rows_of(batches, count: int) -> dict[str, np.ndarray]:
    drawn = [next(batches) for _ in range(count)]
    return {name: np.concatenate([batch[name] for batch in drawn]) for name in drawn[0]}
