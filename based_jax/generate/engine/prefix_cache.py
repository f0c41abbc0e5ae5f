"""Prefixes that many prompts share, read once: the states after them, in memory.

What is kept after a prefix of a recurrent model does not grow with it, so long prefixes are as cheap to
keep as short ones. Caches of keys and values are kept whole, with the capacity that they were made for. Where
the memory ends, prefixes that were not used for the longest time go first.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from based_jax.generate.rows import row_bytes, row_count
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


class Hit(NamedTuple):
    """A prefix that needs not be read."""

    count: int
    """its tokens"""
    state: State
    """one row, after them"""
    hidden: Float[Array, "1 D"]
    """the final norm's output at the last of them"""


class PrefixCache:
    """States after prefixes, found by the SHA-256 of their tokens: no two texts that share one are known.

    For one model, its weights and one capacity: nothing here distinguishes them. The arrays are kept, not
    copied, so they must not be donated. Not for use by several threads at once.

    Args:
        max_bytes: what the kept states may take together; an entry that is larger alone is not kept.
        every: prefixes whose length is a multiple of this are kept: as many states per prompt as there are.

    Raises:
        ValueError: no positive integers.
    """

    def __init__(self, max_bytes: int, every: int = 128) -> None:
        for name, value in (("max_bytes", max_bytes), ("every", every)):
            expect(isinstance(value, int) and value >= 1, name, value, "an integer, at least 1")
        self.max_bytes, self.every = max_bytes, every
        self.bytes = 0
        """what the kept entries take"""
        self.hits = 0
        """searches that found a prefix"""
        self.misses = 0
        """searches that found none"""
        self._entries: OrderedDict[bytes, tuple[Hit, int]] = OrderedDict()  # with their bytes

    def __len__(self) -> int:
        """Prefixes that are kept."""
        return len(self._entries)

    def find(self, tokens: Sequence[int]) -> Hit | None:
        """The longest kept prefix of `tokens`, all of them included; it becomes the one used last."""
        for key in reversed(self._keys(tokens)):
            if key in self._entries:
                self._entries.move_to_end(key)
                self.hits += 1
                return self._entries[key][0]
        self.misses += 1
        return None

    def put(self, tokens: Sequence[int], state: State, hidden: Float[Array, "1 D"]) -> bool:
        """Keep the state after `tokens`, in place of those that were not used for the longest time.

        Args:
            tokens: all that the state has seen.
            hidden: the final norm's output at the last of them.

        Returns:
            False if nothing was kept: the length is not a multiple of `every`, or the entry too large.

        Raises:
            ValueError: a state of more than one row.
        """
        expect(row_count(state) == 1, "state", f"{row_count(state)} rows", "one row")
        size = row_bytes(state) + hidden.nbytes
        if not len(tokens) or len(tokens) % self.every or size > self.max_bytes:
            return False
        key = self._keys(tokens)[-1]
        self._drop(key)
        while self.bytes + size > self.max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = Hit(len(tokens), state, hidden), size
        self.bytes += size
        return True

    def clear(self) -> None:
        """Forget every prefix; `hits` and `misses` go on counting."""
        self._entries.clear()
        self.bytes = 0

    def _drop(self, key: bytes) -> None:
        _, size = self._entries.pop(key, (None, 0))
        self.bytes -= size

    def _keys(self, tokens: Sequence[int]) -> list[bytes]:
        """Digests of the prefixes that could be kept, shortest first, in one pass over the tokens."""
        array = np.asarray(tokens, np.int32)
        digest, keys = hashlib.sha256(), []
        for end in range(self.every, len(array) + 1, self.every):
            digest.update(array[end - self.every : end].tobytes())
            keys.append(digest.digest())
        return keys
