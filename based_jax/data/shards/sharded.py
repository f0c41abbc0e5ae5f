"""Base class of streams with several shards in files: windows by index, and a head in memory."""

import functools

import numpy as np
from jaxtyping import Int64

from based_jax.data.packed import PackedTokens
from based_jax.validate import expect


class Sharded:
    """A `based_jax.data.streams.TokenStream`, built on `sizes` and `shard`."""

    @property
    def name(self) -> str:
        """Return the name to use in errors."""
        raise NotImplementedError

    @functools.cached_property
    def sizes(self) -> Int64[np.ndarray, " shards"]:
        """Return the number of tokens of each shard."""
        raise NotImplementedError

    def shard(self, number: int) -> PackedTokens:
        """Return shard `number`, memory-mapped."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def num_windows(self, length: int, *, drop_last: bool) -> int:
        """See `TokenStream.num_windows`."""
        expect(length >= 1, "length", length, "at least 1")
        return int(self._windows(length, drop_last).sum())

    def window(self, i: int, length: int) -> dict[str, np.ndarray]:
        """See `TokenStream.window`. IndexError: there is no such window."""
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
        """Copy the first `tokens` tokens into memory as one stream; the last document may be cut.

        Raises:
            ValueError: there is no document.
        """
        expect(len(self) > 0, self.name, "no document", "at least one on this side")
        chunks, starts, size, num_bytes = list[np.ndarray](), list[np.ndarray](), 0, 0
        for number in range(self.sizes.size):
            packed, last = self.shard(number), number == self.sizes.size - 1
            # The final EOT of a shard is the leading EOT of the next shard's first document.
            chunks.append(packed.tokens[: min(tokens - size, len(packed) - (not last))])
            starts.append(packed.starts[packed.starts < chunks[-1].size] + size)
            size, num_bytes = size + chunks[-1].size, num_bytes + packed.num_bytes
            if size >= tokens:
                break
        return PackedTokens(np.concatenate(chunks), np.concatenate(starts), num_bytes)
