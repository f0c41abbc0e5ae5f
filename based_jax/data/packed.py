"""Pack documents into one stream of tokens, and cut it into windows of equal length.

    stream  =  EOT d1 EOT d2 ... EOT dn EOT          (T tokens)

Each document's segment begins with its EOT: the first token of a document is predicted from its own EOT, and
its last token predicts the next EOT. Window i predicts tokens i * length + 1 ... (i + 1) * length of the
stream, so every token but the first is predicted exactly once, and a window's first input is the previous
window's last target.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64, UInt

from based_jax.data.documents import Document
from based_jax.data.tokenizers import Tokenizer
from based_jax.validate import expect


@dataclass(frozen=True, eq=False)
class PackedTokens:
    """A stream of T >= 2 tokens; its `len` is T."""

    tokens: UInt[np.ndarray, " T"]
    """uint8, uint16 or uint32, the whole stream"""
    starts: Int64[np.ndarray, " n"]
    """increasing positions of the documents' EOTs, without the final EOT"""
    num_bytes: int
    """UTF-8 bytes of the documents' text, to convert nats per token to bits per byte"""

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
        return cls(np.concatenate([*chunks, eot]), np.asarray(starts, dtype=np.int64), num_bytes)

    def __len__(self) -> int:
        return self.tokens.size

    @cached_property
    def checksum(self) -> int:
        """Return a CRC-32 of the tokens, to detect that a run resumes on other data."""
        return zlib.crc32(np.ascontiguousarray(self.tokens).data)

    @cached_property
    def sizes(self) -> Int64[np.ndarray, " 1"]:
        """Return the tokens of its only shard, itself; see `based_jax.data.streams.TokenStream`."""
        return np.array([len(self)])

    def shard(self, number: int) -> "PackedTokens":
        """Return itself, the only shard."""
        return self

    def num_windows(self, length: int, *, drop_last: bool) -> int:
        """Count the windows of `length` targets; `drop_last` excludes a short one at the end."""
        expect(length >= 1, "length", length, "at least 1")
        targets = len(self) - 1
        return targets // length if drop_last else -(-targets // length)

    def window(self, i: int, length: int) -> dict[str, np.ndarray]:
        """Return window `i` of `length` tokens.

        Returns:
            inputs: int32 (length,).
            targets: int32 (length,), the token after each input.
            segment_ids: int32 (length,), from 1; a new id at each document's EOT.
            mask: bool (length,), False for padding to the right of the stream's end, where inputs and targets
                are EOT and segment_ids repeat the last one.

        Raises:
            IndexError: there is no such window.
        """
        count = self.num_windows(length, drop_last=False)
        if not 0 <= i < count:
            raise IndexError(f"i = {i}: expected 0 <= i < {count}, the number of windows of {length} tokens")
        begin = i * length
        real = min(length, len(self) - 1 - begin)
        stream = np.full(length + 1, self.tokens[0], dtype=np.int32)  # the stream begins with EOT
        stream[: real + 1] = self.tokens[begin : begin + real + 1]
        # The window's first token is in segment 1 whether or not it is an EOT, so only later starts count.
        first, last = np.searchsorted(self.starts, (begin + 1, begin + real))
        changes = np.zeros(length, dtype=np.int32)
        changes[self.starts[first:last] - begin] = 1
        return {
            "inputs": stream[:-1],
            "targets": stream[1:].copy(),
            "segment_ids": 1 + np.cumsum(changes, dtype=np.int32),
            "mask": np.arange(length) < real,
        }
