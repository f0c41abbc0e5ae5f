"""Keep the states after prefixes that many prompts share in memory, so that each is read once.

The state of a recurrent model does not grow with the prefix, so long prefixes cost as little to keep as
short ones. KV caches are kept whole, with the capacity that they were made for. When the memory is full,
the least recently used prefixes are dropped first.
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
    """A prefix whose state is known."""

    count: int
    """its tokens"""
    state: State
    """one row, after the tokens"""
    hidden: Float[Array, "1 D"]
    """(1, D), the final norm's output at the last token"""


class PrefixCache:
    """States after prefixes, found by the SHA-256 of their tokens (no two texts with one hash are known).

    A cache belongs to one model, its weights and one capacity, which it does not check. The arrays are kept,
    not copied, so they must not be donated. Not thread-safe.

    Args:
        max_bytes: most bytes that the kept states may take together; a larger single entry is not kept.
        every: keep prefixes whose length is a multiple of this: as many states per prompt as there are.

    Raises:
        ValueError: an argument is not a positive integer.
    """

    def __init__(self, max_bytes: int, every: int = 128) -> None:
        for name, value in (("max_bytes", max_bytes), ("every", every)):
            expect(isinstance(value, int) and value >= 1, name, value, "an integer, at least 1")
        self.max_bytes, self.every = max_bytes, every
        self.bytes = 0
        """bytes of the kept entries"""
        self._entries: OrderedDict[bytes, tuple[Hit, int]] = OrderedDict()  # and their sizes in bytes

    def __len__(self) -> int:
        """Return the number of kept prefixes."""
        return len(self._entries)

    def find(self, tokens: Sequence[int]) -> Hit | None:
        """Return the longest kept prefix of `tokens` (possibly all) and mark it as most recently used."""
        for key in reversed(self._keys(tokens)):
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        return None

    def put(self, tokens: Sequence[int], state: State, hidden: Float[Array, "1 D"]) -> bool:
        """Keep the state after `tokens`, dropping the least recently used entries if needed.

        Args:
            tokens: all tokens that the state has read.
            hidden: the final norm's output at the last token.

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

    def _drop(self, key: bytes) -> None:
        _, size = self._entries.pop(key, (None, 0))
        self.bytes -= size

    def _keys(self, tokens: Sequence[int]) -> list[bytes]:
        """Digest the prefixes that could be kept, shortest first, in one pass over the tokens."""
        array = np.asarray(tokens, np.int32)
        digest, keys = hashlib.sha256(), []
        for end in range(self.every, len(array) + 1, self.every):
            digest.update(array[end - self.every : end].tobytes())
            keys.append(digest.digest())
        return keys
