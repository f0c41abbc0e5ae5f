"""Store how often each ordered pair of tokens occurs, in a sorted table.

A count file is a safetensors file with two tensors and text metadata:

    keys    uint64 (n,), strictly increasing: first token * 2^32 + second token
    counts  uint64 (n,), at least 1
    format "based_jax.bigrams", version "1", vocab_size, tokens (the sum of the counts), source
"""

import dataclasses
import os

import numpy as np
from jaxtyping import Integer, UInt64
from safetensors import SafetensorError, safe_open

from based_jax.convert.state_dict import write_safetensors
from based_jax.validate import expect

FORMAT = "based_jax.bigrams"
VERSION = "1"

_SHIFT = np.uint64(32)


@dataclasses.dataclass(frozen=True, eq=False)
class BigramTable:
    """Counts of bigrams.

    Attributes:
        keys: sorted, see the module.
        counts: of the keys.
        vocab_size: every token is below it.
        tokens: number of bigrams, the sum of `counts`.
        source: description of what was counted.
    """

    keys: UInt64[np.ndarray, " n"]
    counts: UInt64[np.ndarray, " n"]
    vocab_size: int
    tokens: int
    source: str = ""

    @classmethod
    def of_stream(cls, tokens: Integer[np.ndarray, " T"], vocab_size: int, source: str = "") -> "BigramTable":
        """Count the bigrams of a stream.

        Raises:
            ValueError: a token outside the vocabulary.
        """
        nothing = np.zeros(0, np.uint64)
        return cls(nothing, nothing, vocab_size, 0, source).add(stream_keys(tokens, vocab_size))

    def add(self, keys: UInt64[np.ndarray, " n"]) -> "BigramTable":
        """Return the table with further bigrams, given by the `bigram_keys` of tokens below `vocab_size`."""
        more, times = np.unique(keys, return_counts=True)
        keys_of_both = np.concatenate([self.keys, more])
        order = np.argsort(keys_of_both, kind="stable")  # fast for two sorted arrays, one after the other
        ordered = keys_of_both[order]
        counts = np.concatenate([self.counts, times.astype(np.uint64)])[order]
        first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: ordered.size])
        sums, tokens = np.add.reduceat(counts, first), self.tokens + keys.size
        return dataclasses.replace(self, keys=ordered[first], counts=sums, tokens=tokens)

    def __len__(self) -> int:
        """Return the number of distinct bigrams."""
        return self.keys.size

    def lookup(
        self, first: Integer[np.ndarray, "..."], second: Integer[np.ndarray, "..."]
    ) -> UInt64[np.ndarray, "..."]:
        """Return how often `second` occurs right after `first`, for arrays of equal shape."""
        wanted = bigram_keys(first, second)
        index = np.searchsorted(self.keys, wanted)
        known = index < self.keys.size
        known[known] = self.keys[index[known]] == wanted[known]
        found = np.zeros(wanted.shape, np.uint64)
        found[known] = self.counts[index[known]]
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a count file, whole or not at all."""
        notes = {"format": FORMAT, "version": VERSION, "vocab_size": str(self.vocab_size)}
        notes |= {"tokens": str(self.tokens), "source": self.source}
        write_safetensors(path, {"keys": self.keys, "counts": self.counts}, notes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "BigramTable":
        """Read a count file.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: not a count file, or a damaged one.
        """
        try:
            with safe_open(path, "numpy") as file:
                notes = file.metadata() or {}
                expect(notes.get("format") == FORMAT, "format", notes.get("format"), repr(FORMAT))
                expect(notes.get("version") == VERSION, "version", notes.get("version"), repr(VERSION))
                keys, counts = (file.get_tensor(name) for name in ("keys", "counts"))
            table = cls(keys, counts, int(notes["vocab_size"]), int(notes["tokens"]), notes["source"])
            table._check()
        except (ValueError, KeyError, SafetensorError) as error:
            wanted = f"expected a count file of bigrams ({error})"
            raise ValueError(f"counts = {os.fspath(path)!r}: {wanted}") from error
        return table

    def _check(self) -> None:
        """Check that the table is sorted, as lookups would otherwise be silently wrong, and its totals."""
        for name, array in (("keys", self.keys), ("counts", self.counts)):
            fits = array.dtype == np.uint64 and array.shape == (self.keys.size,)
            expect(fits, name, f"{array.dtype} {array.shape}", f"uint64 ({self.keys.size},)")
        expect(bool(np.all(self.keys[1:] > self.keys[:-1])), "keys", "unsorted", "increasing")
        total = int(self.counts.sum())
        expect(total == self.tokens, "tokens", self.tokens, f"the sum of the counts, {total}")
        last = int(self.keys[-1]) >> 32 if self.keys.size else -1
        expect(last < self.vocab_size, "vocab_size", self.vocab_size, f"more than {last}")


def bigram_keys(
    first: Integer[np.ndarray, "..."], second: Integer[np.ndarray, "..."]
) -> UInt64[np.ndarray, "..."]:
    """Combine each pair of tokens into one number."""
    return (np.asarray(first).astype(np.uint64) << _SHIFT) | np.asarray(second).astype(np.uint64)


def stream_keys(tokens: Integer[np.ndarray, " T"], vocab_size: int) -> UInt64[np.ndarray, " n"]:
    """Return the keys of a stream's bigrams; ValueError: a token outside the vocabulary."""
    if tokens.size:
        low, high = int(tokens.min()), int(tokens.max())
        expect(low >= 0 and high < vocab_size, "tokens", (low, high), f"in [0, {vocab_size})")
    return bigram_keys(tokens[:-1], tokens[1:])
