"""Encode blocks of documents: parse, decode, hash and tokenize."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from based_jax.data import readers
from based_jax.data.shards.megatron import split_at
from based_jax.data.tokenizers import FileTokenizer, Tokenizer
from based_jax.validate import expect

DIGEST = 32  # bytes of a SHA-256
MAX_LINE = 256 << 20  # bytes of a line of JSON; longer ones are skipped
_STEP = 1 << 20  # characters that a character-level tokenizer encodes at once


class Encoded(NamedTuple):
    """The n documents of a block, as tokens."""

    lengths: np.ndarray  # int64 (n,): tokens of each document, with its leading EOT
    sizes: np.ndarray  # int64 (n,): UTF-8 bytes of each text
    named: np.ndarray  # bool (n,): whether the document's name is to be held out
    digests: np.ndarray  # uint8 (n, 32): SHA-256 of each text
    tokens: np.ndarray  # the manifest's dtype: EOT d1 EOT d2 ... dn
    skipped: Sequence[tuple[str, str]]  # name and reason
    names: Sequence[str]  # names to hold out that were found


class BlockEncoder:
    """Encodes blocks: parse, decode, hash, tokenize; `names` are the documents to hold out."""

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._names = frozenset(names)
        self._dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")

    def encode(self, parts: Sequence[Sequence[Any]]) -> Encoded:
        """Encode the parts of a block, each a `blocks.Part` or a tuple of its fields.

        Raises:
            ValueError: ids of a token file outside the vocabulary: they belong to another tokenizer.
        """
        names, texts, ids, skipped = list[str](), list[str](), list[Any](), list[Any]()
        for kind, name, number, sizes, data in parts:
            for own_name, found in _documents(kind, name, number, sizes, memoryview(data)):
                if isinstance(found, np.ndarray):
                    for document in split_at(found, self._tokenizer.eot):
                        ids.append(self._checked(own_name, document))
                        texts.append(self._tokenizer.decode(document))
                        names.append(own_name)
                elif found.reason or not found.text:
                    skipped.append((own_name, found.reason or "empty"))
                else:
                    ids.append(None)
                    texts.append(found.text)
                    names.append(own_name)
        self._tokenize(texts, ids)
        refused = [i for i, found in enumerate(ids) if isinstance(found, str)]
        skipped += [(names[i], ids[i]) for i in refused]
        kept = [i for i, found in enumerate(ids) if not isinstance(found, str)]
        return self._joined(
            [names[i] for i in kept], [texts[i] for i in kept], [ids[i] for i in kept], skipped
        )

    def _tokenize(self, texts: Sequence[str], ids: list[Any]) -> None:
        """Replace each None in `ids` by the tokens of the text, or by the reason why there are none."""
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
            try:  # not all at once: a chromosome in int32 would take four times its text
                ids[i] = np.concatenate([self._tokenizer.encode(step).astype(self._dtype) for step in steps])
            except ValueError:
                ids[i] = "refused by the tokenizer"

    def _checked(self, name: str, ids: np.ndarray) -> np.ndarray:
        low, high = int(ids.min()), int(ids.max())
        inside = low >= 0 and high < self._tokenizer.vocab_size
        vocabulary = (
            f"from 0 to {self._tokenizer.vocab_size - 1}, the ids of the tokenizer {self._tokenizer.name}"
        )
        expect(inside, f"{name}, token ids", (low, high), vocabulary)
        return ids

    def _joined(
        self, names: Sequence[str], texts: Sequence[str], ids: Sequence[np.ndarray], skipped: Any
    ) -> Encoded:
        lengths = np.asarray([1 + found.size for found in ids], dtype=np.int64)
        tokens = np.empty(int(lengths.sum()), self._dtype)
        sizes, digests = np.empty(len(ids), np.int64), np.empty((len(ids), DIGEST), np.uint8)
        end = 0
        for i, (text, found) in enumerate(zip(texts, ids, strict=True)):
            tokens[end] = self._tokenizer.eot
            tokens[end + 1 : end + 1 + found.size] = found
            end += 1 + found.size
            content = text.encode("utf-8")
            sizes[i] = len(content)
            digests[i] = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
        matches = [self._names.intersection(name.split(":")) if self._names else () for name in names]
        named = np.asarray([bool(match) for match in matches], dtype=bool)
        found_names = sorted(set().union(*matches))
        return Encoded(lengths, sizes, named, digests, tokens, skipped, found_names)


class _Text(NamedTuple):
    text: str
    reason: str = ""  # why there is no text


def _documents(
    kind: str, name: str, number: int | None, sizes: Sequence[int], data: memoryview
) -> Iterator[tuple[str, "_Text | np.ndarray"]]:
    """Yield the names and contents of a part's documents."""
    if kind == "lines":
        assert number is not None
        yield from _lines(name, number, data)
        return
    begin = 0
    for i, size in enumerate(sizes):
        own_name = name if number is None else f"{name}:{number + i}"
        content, begin = data[begin : begin + size], begin + size
        yield own_name, _decoded(content) if kind == "texts" else np.frombuffer(content, dtype=kind)


def _lines(name: str, number: int, data: memoryview) -> Iterator[tuple[str, _Text]]:
    content = bytes(data)
    if number == 1:
        content = content.removeprefix(readers.BYTE_ORDER_MARK)
    for i, line in enumerate(content.split(b"\n"), start=number):
        if not line.strip():
            continue
        if len(line) > MAX_LINE:
            yield f"{name}:{i}", _Text("", "too large")
            continue
        decoded = _decoded(memoryview(line))
        try:
            yield (
                f"{name}:{i}",
                decoded if decoded.reason else _Text(readers.parse_line(decoded.text, name, i)),
            )
        except readers.BrokenRecord as error:
            yield f"{name}:{i}", _Text("", error.reason)


def _decoded(content: memoryview) -> _Text:
    try:
        return _Text(str(content, "utf-8"))
    except UnicodeDecodeError:
        return _Text("", "not UTF-8")
