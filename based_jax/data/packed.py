"""Pack documents into one stream of tokens, and cut it into windows of equal length.

    stream  =  EOT d1 EOT d2 ... EOT dn EOT          (T tokens)

Each document's segment begins with its EOT: the first token of a document is predicted from its own EOT, and
its last token predicts the next EOT. If the tokenizer's file puts a token before a text, such as <s>, models
read that one in place of EOT, as in generation, and still predict EOT. Window i predicts tokens
i * length + 1 ... (i + 1) * length of the stream, so every token but the first is predicted exactly once, and
a window's first input is the previous window's last target. A `Mixture` of several streams is for training,
by weight.
"""

import math
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, UInt

from based_jax.data.documents import Document
from based_jax.data.tokenizers import Tokenizer, text_start
from based_jax.validate import expect


class TokenStream:
    """Tokens of documents in one or more shards, each a stream of its own; `len` counts all tokens."""

    num_bytes: Any
    """UTF-8 bytes of the documents' text"""
    checksum: Any
    """an integer by which a run that resumes on other data is detected"""

    @cached_property
    def sizes(self) -> Int64[np.ndarray, " shards"]:
        """Return the number of tokens of each shard."""
        raise NotImplementedError

    def shard(self, number: int) -> "PackedTokens":
        """Return shard `number`; its arrays may be memory-mapped."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def num_windows(self, length: int, *, drop_last: bool) -> int:
        """Count the windows of `length` targets; `drop_last` excludes short ones at the ends of shards."""
        expect(length >= 1, "length", length, "at least 1")
        return int(self._windows(length, drop_last).sum())

    def window(self, i: int, length: int, *, drop_last: bool = False) -> dict[str, np.ndarray]:
        """Return window `i` of `length` tokens, counted over all shards like `num_windows`.

        Returns:
            inputs: int32 (length,), with `PackedTokens.start` in place of EOT.
            targets: int32 (length,), the token after each input.
            segment_ids: int32 (length,), from 1; a new id at each document's EOT.
            mask: bool (length,), False for padding to the right of a shard's end, where inputs and targets
                are EOT and segment_ids repeat the last one.

        Raises:
            IndexError: there is no such window.
        """
        ends = np.cumsum(self._windows(length, drop_last))
        count = int(ends[-1]) if ends.size else 0
        if not 0 <= i < count:
            raise IndexError(f"i = {i}: expected 0 <= i < {count}, the number of windows of {length} tokens")
        number = int(np.searchsorted(ends, i, side="right"))
        before = int(ends[number - 1]) if number else 0
        return self.shard(number).window_at((i - before) * length, length)

    def _windows(self, length: int, drop_last: bool) -> Int64[np.ndarray, " shards"]:
        targets = self.sizes - 1
        return targets // length if drop_last else -(-targets // length)


@dataclass(frozen=True, eq=False)
class PackedTokens(TokenStream):
    """A stream of T >= 2 tokens, its only shard; its `len` is T."""

    tokens: UInt[np.ndarray, " T"]
    """uint8, uint16 or uint32, the whole stream"""
    starts: Int64[np.ndarray, " n"]
    """increasing positions of the documents' EOTs, without the final EOT"""
    num_bytes: int
    """UTF-8 bytes of the documents' text, to convert nats per token to bits per byte"""
    start: int | None = None
    """token that models read in place of EOT; None: EOT itself"""

    @classmethod
    def from_documents(cls, documents: Iterable[Document], tokenizer: Tokenizer) -> "PackedTokens":
        """Encode documents one after the other.

        Raises:
            ValueError: no documents, one that the tokenizer rejects, or ids outside its vocabulary.
        """
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1)  # the smallest: a genome has billions of tokens
        eot = np.full(1, tokenizer.eot, dtype)
        chunks, starts, position, num_bytes = [], [], 0, 0
        for document in documents:
            try:
                ids = tokenizer.encode(document.text)
            except ValueError as error:
                raise ValueError(f"{document.name}: {error}") from error
            if ids.size:
                low, high = int(ids.min()), int(ids.max())
                inside = low >= 0 and high < tokenizer.vocab_size
                expect(inside, "token ids", (low, high), f"from 0 to {tokenizer.vocab_size - 1}")
            chunks += [eot, ids.astype(dtype)]
            starts.append(position)
            position += 1 + ids.size
            num_bytes += len(document.text.encode("utf-8"))
        expect(bool(starts), "documents", [], "at least one document")
        tokens, begins = np.concatenate([*chunks, eot]), np.asarray(starts, dtype=np.int64)
        return cls(tokens, begins, num_bytes, text_start(tokenizer))

    @cached_property
    def checksum(self) -> int:
        """Return a CRC-32 of the tokens, to detect that a run resumes on other data."""
        return zlib.crc32(np.ascontiguousarray(self.tokens).data)

    @cached_property
    def sizes(self) -> Int64[np.ndarray, " 1"]:
        """Return the number of its tokens."""
        return np.array([self.tokens.size])

    def shard(self, number: int) -> "PackedTokens":
        """Return itself."""
        return self

    def as_inputs(self, tokens: Int32[np.ndarray, "*shape"]) -> Int32[np.ndarray, "*shape"]:
        """Return tokens of the stream as models read them: `start` in place of EOT, the first token."""
        return tokens if self.start is None else np.where(tokens == self.tokens[0], self.start, tokens)

    def window_at(self, begin: int, length: int) -> dict[str, np.ndarray]:
        """Return the window, arrays (length,), whose first input is token `begin`; see `window`."""
        real = min(length, len(self) - 1 - begin)
        stream = np.full(length + 1, self.tokens[0], dtype=np.int32)  # the stream begins with EOT
        stream[: real + 1] = self.tokens[begin : begin + real + 1]
        # The window's first token is in segment 1 whether or not it is an EOT, so only later starts count.
        first, last = np.searchsorted(self.starts, (begin + 1, begin + real))
        changes = np.zeros(length, dtype=np.int32)
        changes[self.starts[first:last] - begin] = 1
        return {
            "inputs": self.as_inputs(stream[:-1]),
            "targets": stream[1:].copy(),
            "segment_ids": 1 + np.cumsum(changes, dtype=np.int32),
            "mask": np.arange(length) < real,
        }


_PART = re.compile(r"(.+)=([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)")


def parse_mixture(spec: str) -> dict[str, float] | None:
    """Parse a spec such as "tokens:pile=0.7,code.jsonl=0.3" into weights; None if it names one source.

    A mixture is two or more ``SOURCE=WEIGHT``, separated by commas, unless there is a file of that name.

    Raises:
        ValueError: a weight of 0 or below, an infinite sum of weights, or a repeated source.
    """
    found = [_PART.fullmatch(part.strip()) for part in spec.split(",")]
    if len(found) < 2 or not all(found) or os.path.exists(spec):
        return None
    parts = [(match[1], match[2]) for match in found if match]
    weights = {name: float(weight) for name, weight in parts}
    expect(len(weights) == len(parts), "data", spec, "each source once")
    are_weights = all(weight > 0 for weight in weights.values()) and sum(weights.values()) < math.inf
    expect(are_weights, "data", spec, "weights above 0 with a finite sum")
    return weights


@dataclass(frozen=True, eq=False)
class Mixture:
    """Sources for training, each with its share of the tokens; `len` counts all their tokens."""

    names: tuple[str, ...]  # short names, for metrics
    parts: tuple[TokenStream, ...]
    weights: tuple[float, ...]  # above 0, of any sum

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of all sources' text."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """Return the weights, normalized to sum to 1."""
        return tuple(weight / sum(self.weights) for weight in self.weights)

    @property
    def checksum(self) -> int:
        """Return a checksum of the sources, their weights and their order."""
        return zlib.crc32(repr(([part.checksum for part in self.parts], self.shares)).encode())
