"""Encode blocks of documents: parse, decode, hash and tokenize."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from based_jax.data.documents import Skipped
from based_jax.data.shards.megatron import split_at
from based_jax.data.shards.parts import Part, Stored, documents_of
from based_jax.data.tokenizers import FileTokenizer, Tokenizer
from based_jax.validate import expect

DIGEST = 32  # bytes of a SHA-256
_STEP = 1 << 20  # characters that a character-level tokenizer encodes at once


class Encoded(NamedTuple):
    """The n documents of a block, as tokens."""

    lengths: np.ndarray  # int64 (n,): tokens of each document, with its leading EOT
    sizes: np.ndarray  # int64 (n,): UTF-8 bytes of each text
    named: np.ndarray  # bool (n,): whether the document's name is to be held out
    digests: np.ndarray  # uint8 (n, 32): SHA-256 of each text
    tokens: np.ndarray  # the manifest's dtype: EOT d1 EOT d2 ... dn
    files: np.ndarray  # int64 (n,): the index of each document's file
    skipped: Sequence[tuple[int, Skipped]]  # with the index of the file
    encodings: Mapping[int, str]  # of the files that have one, by index
    names: Sequence[str]  # names to hold out that were found


class BlockEncoder:
    """Encodes blocks: parse, decode, hash, tokenize.

    Args:
        names: the documents to hold out.
        field: the field of records that is the text.
    """

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str] = (), field: str = "text") -> None:
        self._tokenizer, self._field = tokenizer, field
        self._names = frozenset(names)
        self._dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")

    def encode(self, items: Sequence[tuple[int, Part | Skipped]]) -> Encoded:
        """Encode the items of a block, each with the index of its file.

        Raises:
            ValueError: ids of a token file outside the vocabulary: they belong to another tokenizer.
        """
        rows, ids, skipped = list[tuple[int, str, str]](), list[Any](), list[tuple[int, Skipped]]()
        parts = [(index, item) for index, item in items if isinstance(item, Part)]
        encodings = {index: part.encoding for index, part in parts if part.encoding is not None}
        for index, item in items:
            for found in [item] if isinstance(item, Skipped) else documents_of(item, self._field):
                if isinstance(found, Skipped):
                    skipped.append((index, found))
                elif isinstance(found, Stored):
                    for document in split_at(found.ids, self._tokenizer.eot):
                        ids.append(self._checked(found.name, document))
                        rows.append((index, found.name, self._tokenizer.decode(document)))
                else:
                    ids.append(None)
                    rows.append((index, found.name, found.text))
        self._tokenize([text for *_, text in rows], ids)
        kept = [i for i, found in enumerate(ids) if found is not None]
        refused = [row for row, found in zip(rows, ids, strict=True) if found is None]
        skipped += [(index, Skipped(name, "refused by the tokenizer")) for index, name, _ in refused]
        return self._joined([rows[i] for i in kept], [ids[i] for i in kept], skipped, encodings)

    def _tokenize(self, texts: Sequence[str], ids: list[Any]) -> None:
        """Replace each None in `ids` by the tokens of the text, unless the tokenizer refuses it."""
        missing = [i for i, found in enumerate(ids) if found is None]
        if isinstance(self._tokenizer, FileTokenizer):
            for i, tokens in zip(
                missing, self._tokenizer.encode_batch([texts[i] for i in missing]), strict=True
            ):
                ids[i] = tokens
            return
        for i in missing:
            text = texts[i]
            steps = (text[begin : begin + _STEP] for begin in range(0, len(text), _STEP))
            with contextlib.suppress(ValueError):
                # Not all at once: a chromosome in int32 would take four times its text.
                ids[i] = np.concatenate([self._tokenizer.encode(step).astype(self._dtype) for step in steps])

    def _checked(self, name: str, ids: np.ndarray) -> np.ndarray:
        low, high = int(ids.min()), int(ids.max())
        inside = low >= 0 and high < self._tokenizer.vocab_size
        vocabulary = (
            f"from 0 to {self._tokenizer.vocab_size - 1}, the ids of the tokenizer {self._tokenizer.name}"
        )
        expect(inside, f"{name}, token ids", (low, high), vocabulary)
        return ids

    def _joined(
        self,
        rows: Sequence[tuple[int, str, str]],
        ids: Sequence[np.ndarray],
        skipped: Sequence[tuple[int, Skipped]],
        encodings: Mapping[int, str],
    ) -> Encoded:
        lengths = np.asarray([1 + found.size for found in ids], dtype=np.int64)
        tokens = np.empty(int(lengths.sum()), self._dtype)
        sizes, digests = np.empty(len(ids), np.int64), np.empty((len(ids), DIGEST), np.uint8)
        end = 0
        for i, ((*_, text), found) in enumerate(zip(rows, ids, strict=True)):
            tokens[end] = self._tokenizer.eot
            tokens[end + 1 : end + 1 + found.size] = found
            end += 1 + found.size
            content = text.encode("utf-8")
            sizes[i] = len(content)
            digests[i] = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
        matches = [self._names.intersection(name.split(":")) if self._names else () for _, name, _ in rows]
        named = np.asarray([bool(match) for match in matches], dtype=bool)
        files = np.asarray([index for index, *_ in rows], dtype=np.int64)
        found_names = sorted(set().union(*matches))
        return Encoded(lengths, sizes, named, digests, tokens, files, skipped, encodings, found_names)
