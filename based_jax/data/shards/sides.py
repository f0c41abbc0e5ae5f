"""Choose the held-out split of token shards in one pass, with no text in both splits.

As in `based_jax.data.splits`, a document is held out if the SHA-256 of its text, read as a number in [0, 1),
is below the fraction, or if it has one of the names; and the held-out split has every text once. Differences,
since there is only one pass:

- With a limit in bytes, the split has the texts with the smallest hashes that fit together. All others below
  the fraction are used for training, as is a text that alone exceeds the limit.
- No document is cut. The split may be empty, and names cannot be combined with a limit.
- The split is in the order of the sources.
"""

import heapq
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

COPY = "copy of a held-out document"


class Verdict(NamedTuple):
    """The decision about an offered document."""

    side: str | None  # "held_out", at least for now; "train"; None: a copy of a held-out document
    released: list[int]  # indices of held-out documents that are moved to training


class HeldOut:
    """Decides which held-out documents are kept; call `offer` in their order."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._keys: set[bytes] = set()
        self._heap: list[tuple[int, int, int, bytes]] = []  # kept documents: negative hash, size, index, key
        self._bytes = 0
        self._end: int | None = None  # hashes of at least this do not fit
        self._accepted = 0

    def offer(self, digest: bytes, size: int) -> Verdict:
        """Decide about a document below the fraction; `digest` is the SHA-256 of its text."""
        order, key = int.from_bytes(digest[:16], "big"), digest[16:]
        if self._max_bytes is not None and (
            size > self._max_bytes or (self._end is not None and order >= self._end)
        ):
            return Verdict("train", [])
        if key in self._keys:
            return Verdict(None, [])
        self._keys.add(key)
        if self._max_bytes is None:
            return Verdict("held_out", [])
        heapq.heappush(self._heap, (-order, size, self._accepted, key))
        self._accepted += 1
        self._bytes += size
        released = []
        while self._bytes > self._max_bytes:
            order, size, number, key = heapq.heappop(self._heap)
            self._end, self._bytes = -order, self._bytes - size
            self._keys.remove(key)
            released.append(number)
        return Verdict("held_out", released)

    def kept(self, accepted: int) -> Bool[np.ndarray, " n"]:
        """Return a mask of the accepted documents that are kept in the end."""
        if self._max_bytes is None:
            return np.ones(accepted, bool)
        kept = np.zeros(accepted, bool)
        kept[[number for _, _, number, _ in self._heap]] = True
        return kept


def positions(digests: UInt8[np.ndarray, "n 32"]) -> np.ndarray:
    """Return the positions in [0, 1) of texts with these hashes, float64 (n,); see `splits.position`."""
    first = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return (first >> np.uint64(11)) / float(1 << 53)
