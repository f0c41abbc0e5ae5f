"""The held-out side of token shards, decided in one pass: no text is on both sides.

As in `based_jax.data.splits` a document is held out if the SHA-256 of its text, read as a number in [0, 1),
is below the fraction, or if it has one of the names, and the side has every text once. What differs, because
no document is seen twice:

- With a bound on the bytes the side has the texts with the smallest hashes that fit together. All others
  below the fraction are for training, as is a text that alone is larger than the bound.
- No document is cut. A side may stay empty, and names do not go together with a bound.
- The side is in the order of the sources.
"""

import heapq
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

COPY = "copy of a held-out document"


class Verdict(NamedTuple):
    """What becomes of an offered document."""

    side: str | None  # "held_out", at least for now; "train"; None: it is a copy of a held-out one
    released: list[int]  # held-out documents that are for training now, by their number among the held-out


class HeldOut:
    """Decide which of the held-out documents are kept; `offer` has to be called in their order."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._keys: set[bytes] = set()
        self._heap: list[tuple[int, int, int, bytes]] = []  # of the kept: negative hash, size, number, key
        self._bytes = 0
        self._end: int | None = None  # hashes from this one on do not fit
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
        """Which of the accepted documents are kept in the end."""
        if self._max_bytes is None:
            return np.ones(accepted, bool)
        kept = np.zeros(accepted, bool)
        kept[[number for _, _, number, _ in self._heap]] = True
        return kept


def positions(digests: UInt8[np.ndarray, "n 32"]) -> np.ndarray:
    """Return float64 (n,), the positions in [0, 1) of texts with these hashes, as of `splits.position`."""
    first = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return (first >> np.uint64(11)) / float(1 << 53)
