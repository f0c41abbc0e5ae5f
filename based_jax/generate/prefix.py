"""Snapshots: the states after prefixes, so that texts that share one read it once.

The state of a recurrent model does not grow with the prefix, so long prefixes cost as little to keep as
short ones. KV caches are kept whole, with the capacity that they were made for.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from based_jax.generate.states import row_bytes, row_count
from based_jax.typing import State
from based_jax.validate import expect, expect_integer


class Snapshot(NamedTuple):
    """A prefix and what the model keeps of it; useful only with the model and weights that made it."""

    tokens: np.ndarray
    """(N,) int32"""
    state: State
    """one row, after the tokens"""
    hidden: Any
    """(1, D), the final norm's output at the last token"""


class PrefixCache:
    """Snapshots in memory, found by the SHA-256 of their tokens (no two texts with one hash are known).

    When the memory is full, the least recently used ones are dropped first. A cache belongs to one model, its
    weights and one capacity, which it does not check. The arrays are kept, not copied, so they must not be
    donated. Not thread-safe.

    Args:
        max_bytes: most bytes that the kept states may take together; a larger single one is not kept.
        every: keep prefixes whose length is a multiple of this: as many states per prompt as there are.

    Raises:
        ValueError: an argument is not a positive integer.
    """

    def __init__(self, max_bytes: int, every: int = 128) -> None:
        for name, value in (("max_bytes", max_bytes), ("every", every)):
            expect_integer(name, value, 1)
        self.max_bytes, self.every = int(max_bytes), int(every)
        self.bytes = 0
        """bytes of the kept states"""
        self._kept: OrderedDict[bytes, Snapshot] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of kept prefixes."""
        return len(self._kept)

    def find(self, tokens: Sequence[int] | np.ndarray) -> Snapshot | None:
        """Return the longest kept prefix of `tokens`, (N,) integers, and mark it as most recently used."""
        for key in reversed(self._keys(tokens)):
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        return None

    def put(self, prefix: Snapshot) -> bool:
        """Keep a prefix, dropping the least recently used ones if needed.

        Returns:
            False if nothing was kept: the length is not a multiple of `every`, or the state too large.

        Raises:
            ValueError: a state of more than one row.
        """
        expect(row_count(prefix.state) == 1, "state", f"{row_count(prefix.state)} rows", "one row")
        count, size = len(prefix.tokens), _size(prefix)
        if not count or count % self.every or size > self.max_bytes:
            return False
        key = self._keys(prefix.tokens)[-1]
        if key in self._kept:
            self.bytes -= _size(self._kept.pop(key))
        while self.bytes + size > self.max_bytes:
            self.bytes -= _size(self._kept.popitem(last=False)[1])
        self._kept[key] = prefix
        self.bytes += size
        return True

    def _keys(self, tokens: Sequence[int] | np.ndarray) -> list[bytes]:
        """Digest the prefixes that could be kept, shortest first, in one pass over the tokens."""
        array = np.asarray(tokens, np.int32)
        digest, keys = hashlib.sha256(), []
        for end in range(self.every, len(array) + 1, self.every):
            digest.update(array[end - self.every : end].tobytes())
            keys.append(digest.digest())
        return keys


def _size(prefix: Snapshot) -> int:
    return row_bytes(prefix.state) + prefix.hidden.nbytes
