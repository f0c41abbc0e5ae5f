"""What the streams of several shards in files have in common: windows by number, and a head in memory."""

import functools

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import PackedTokens
from based_jax.validate import expect


class Sharded:
    """A `based_jax.data.streams.TokenStream`, of its `sizes` and `shard`."""

    @property
    def name(self) -> str:
        """What it is called in errors."""
        raise NotImplementedError

    @functools.cached_property
    def sizes(self) -> Int64[np.ndarray, " shards"]:
        """Tokens of each shard."""
        raise NotImplementedError

    def shard(self, number: int) -> PackedTokens:
        """Shard `number`, memory-mapped."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def num_windows(self, length: int, *, drop_last: bool) -> int:
        """As `TokenStream.num_windows`."""
        expect(length >= 1, "length", length, "at least 1")
        return int(self._windows(length, drop_last).sum())

    def window(self, i: int, length: int) -> dict[str, np.ndarray]:
        """As `TokenStream.window`. IndexError: there is no such window."""
        ends = np.cumsum(self._windows(length, drop_last=False))
        count = int(ends[-1]) if ends.size else 0
        if not 0 <= i < count:
            raise IndexError(f"i = {i}: expected 0 <= i < {count}, the number of windows of {length} tokens")
        number = int(np.searchsorted(ends, i, side="right"))
        return self.shard(number).window(i - (int(ends[number - 1]) if number else 0), length)

    def _windows(self, length: int, drop_last: bool) -> Int64[np.ndarray, " shards"]:
        targets = self.sizes - 1
        return targets // length if drop_last else -(-targets // length)

    def head(self, tokens: int) -> PackedTokens:
        """The first documents as one stream in memory, up to so many `tokens`, cut there.

        Raises:
            ValueError: there is no document.
        """
        expect(len(self) > 0, self.name, "no document", "at least one on this side")
        chunks, starts, size, num_bytes = list[np.ndarray](), list[np.ndarray](), 0, 0
        for number in range(self.sizes.size):
            packed, last = self.shard(number), number == self.sizes.size - 1
            # The final EOT of a shard is that of the next one's first document.
            chunks.append(packed.tokens[: min(tokens - size, len(packed) - (not last))])
            starts.append(packed.starts[packed.starts < chunks[-1].size] + size)
            size, num_bytes = size + chunks[-1].size, num_bytes + packed.num_bytes
            if size >= tokens:
                break
        return PackedTokens(np.concatenate(chunks), np.concatenate(starts), num_bytes)
