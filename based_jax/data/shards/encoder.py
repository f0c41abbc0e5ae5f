"""Encode blocks of documents in parallel threads: hash and tokenize; results are in the order of the blocks.

The tokenizers library, which takes nine tenths of the time, lets other threads run while it encodes.
"""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from based_jax.data.documents import Document, Skipped
from based_jax.data.shards.blocks import BLOCK, Block
from based_jax.data.tokenizers import FileTokenizer, Tokenizer

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
    names: Sequence[str]  # names to hold out that were found


class BlockEncoder:
    """Encodes blocks: hash and tokenize; `names` are the documents to hold out."""

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str] = ()) -> None:
        self._tokenizer, self._names = tokenizer, frozenset(names)
        self._dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")

    def encode(self, items: Sequence[tuple[int, Document | Skipped]]) -> Encoded:
        """Encode the items of a block, each with the index of its file."""
        skipped = [(index, item) for index, item in items if isinstance(item, Skipped)]
        documents = [(index, item) for index, item in items if isinstance(item, Document)]
        ids = self._tokenize([document.text for _, document in documents])
        for (index, document), tokens in zip(documents, ids, strict=True):
            if tokens is None:
                skipped.append((index, Skipped(document.name, "refused by the tokenizer")))
        kept = [i for i, tokens in enumerate(ids) if tokens is not None]
        return self._joined([documents[i] for i in kept], [ids[i] for i in kept], skipped)

    def _tokenize(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return the tokens of each text, None if the tokenizer refuses it."""
        if isinstance(self._tokenizer, FileTokenizer):
            return self._tokenizer.encode_batch(texts)
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> np.ndarray | None:
        steps = (text[begin : begin + _STEP] for begin in range(0, len(text), _STEP))
        try:  # not all at once: a chromosome in int32 would take four times its text
            return np.concatenate([self._tokenizer.encode(step).astype(self._dtype) for step in steps])
        except ValueError:
            return None

    def _joined(
        self,
        documents: Sequence[tuple[int, Document]],
        ids: Sequence[np.ndarray],
        skipped: Sequence[tuple[int, Skipped]],
    ) -> Encoded:
        lengths = np.asarray([1 + found.size for found in ids], dtype=np.int64)
        tokens = np.empty(int(lengths.sum()), self._dtype)
        sizes, digests = np.empty(len(ids), np.int64), np.empty((len(ids), DIGEST), np.uint8)
        end = 0
        for i, ((_, document), found) in enumerate(zip(documents, ids, strict=True)):
            tokens[end] = self._tokenizer.eot
            tokens[end + 1 : end + 1 + found.size] = found
            end += 1 + found.size
            content = document.text.encode("utf-8")
            sizes[i] = len(content)
            digests[i] = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
        names = (document.name.split(":") for _, document in documents)
        matches = [self._names.intersection(own) if self._names else () for own in names]
        named = np.asarray([bool(match) for match in matches], dtype=bool)
        files = np.asarray([index for index, _ in documents], dtype=np.int64)
        found_names = sorted(set().union(*matches))
        return Encoded(lengths, sizes, named, digests, tokens, files, skipped, found_names)


_AHEAD = 2  # blocks per thread in flight: read, being encoded or not yet written
_MAX_BYTES = 64 * BLOCK  # limit of the text in flight; a single larger block is allowed


def encode_blocks(
    blocks: Iterable[Block], encoder: BlockEncoder, count: int
) -> Iterator[tuple[Block, Encoded]]:
    """Yield each block, without its text, and its encoding; few blocks are in memory at once.

    Args:
        count: blocks that are encoded at the same time.

    Raises:
        ValueError: see `BlockEncoder.encode`.
    """
    pending: deque[tuple[Block, int, Future[Encoded]]] = deque()
    in_flight = 0
    with _serial_library(), ThreadPoolExecutor(count, thread_name_prefix="tokenize") as threads:
        try:
            for block in blocks:
                while pending and (len(pending) >= _AHEAD * count or in_flight + block.size > _MAX_BYTES):
                    first, size, future = pending.popleft()
                    in_flight -= size
                    yield first, future.result()
                in_flight += block.size
                future = threads.submit(encoder.encode, block.items)
                block.items = []
                pending.append((block, block.size, future))
            while pending:
                first, _, future = pending.popleft()
                yield first, future.result()
        finally:
            threads.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _serial_library() -> Iterator[None]:
    """Let a call of the tokenizers library use one core, instead of all."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
