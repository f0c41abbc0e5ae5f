"""Group the documents of files into blocks, from any position on, and encode these in threads.

A block ends between two documents; block borders do not affect the output. Results are in the order of the
blocks. The tokenizers library, which takes nine tenths of the time, lets other threads run while it encodes.
"""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from based_jax.data.documents import Document, FileReport, Skipped, Unusable
from based_jax.data.hub import HUB, hub_fingerprint
from based_jax.data.readers import ReadOptions
from based_jax.data.reading import read_file
from based_jax.data.shards.manifest import SourceRecord, token_dtype
from based_jax.data.sources import File, find_files, status_of
from based_jax.data.tokenizers import FileTokenizer, Tokenizer

BLOCK = 1 << 20  # characters of text after which a block ends
_MAX_ITEMS = 4096

_STEP = 1 << 20  # characters that a character-level tokenizer encodes at once
_AHEAD = 2  # blocks per thread in flight: read, being encoded or not yet written
_MAX_BYTES = 64 * BLOCK  # limit of the text in flight; a single larger block is allowed


class Position(NamedTuple):
    """Position in the sources where a block ends and the next one begins."""

    file: int  # index of the file or data set
    offset: int  # see `reading.Item`
    number: int


@dataclass
class Block:
    """Some documents, in order."""

    end: Position = Position(0, 0, 0)  # noqa: RUF009  (immutable)
    done: int = 0  # bytes on disk of all files up to here
    items: list[tuple[int, Document | Skipped]] = field(default_factory=list)  # with the index of the file
    size: int = 0  # characters of text

    @property
    def is_full(self) -> bool:
        return self.size >= BLOCK or len(self.items) >= _MAX_ITEMS

    def add(self, index: int, found: Document | Skipped) -> None:
        self.items.append((index, found))
        self.size += len(found.text) if isinstance(found, Document) else 0


def read_blocks(files: Sequence[File], start: Position, options: ReadOptions) -> Iterator[Block]:
    """Yield the documents of the files from `start` on: the end of an earlier block, or zeros."""
    block, done = Block(), sum(file.size for file in files[: start.file])
    for index in range(start.file, len(files)):
        offset, number = start[1:] if index == start.file else (0, 0)
        try:
            for item in read_file(files[index], options, offset, number):
                block.add(index, item.found)
                if block.is_full:
                    block.end, block.done = Position(index, item.offset, item.number), done + item.done
                    yield block
                    block = Block()
        except Unusable as error:
            block.add(index, error.skipped(files[index].name))
        done += files[index].size
        if block.is_full or index == len(files) - 1:
            block.end, block.done = Position(index + 1, 0, 0), done
            yield block
            block = Block()


class Sources(NamedTuple):
    """All files of all sources, in order."""

    files: list[File]
    records: tuple[SourceRecord, ...]
    others: list[FileReport]  # about directories that cannot be listed, and files that are not read


def find_sources(specs: Sequence[str], include: str | None = None) -> Sources:
    """Find the files that the specs name (see `based_jax.data.sources`).

    Errors: see `load_documents`.
    """
    files, records, others = list[File](), list[SourceRecord](), list[FileReport]()
    for spec in specs:
        (own, left_out), digest = find_files(spec, include), hashlib.sha256()
        files += own
        others += left_out
        if spec.startswith(HUB):
            own = []
            digest.update(hub_fingerprint(spec).encode())
        for file in own:
            state = file.path and status_of(file.path)
            times = [(state.st_size, state.st_mtime_ns)] if state else []
            digest.update(f"{file.name}\0{times}\n".encode("utf-8", errors="replace"))
        size = sum(file.size for file in own)
        records.append(SourceRecord(spec, include, len(own), size, digest.hexdigest()))
    return Sources(files, tuple(records), others)


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
        self._dtype = token_dtype(tokenizer.vocab_size)

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
            with contextlib.suppress(ValueError):  # at least one is refused: find out which
                return self._tokenizer.encode_batch(texts)
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> np.ndarray | None:
        size = len(text) if isinstance(self._tokenizer, FileTokenizer) else _STEP
        steps = (text[begin : begin + size] for begin in range(0, len(text), size))
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
        contents = (document.text.encode("utf-8") for _, document in documents)  # one at a time
        hashed = [(len(content), hashlib.sha256(content).digest()) for content in contents]
        eot = np.full(1, self._tokenizer.eot, self._dtype)
        parts = [part for found in ids for part in (eot, found.astype(self._dtype, copy=False))]
        lengths = np.asarray([1 + found.size for found in ids], dtype=np.int64)
        sizes = np.asarray([size for size, _ in hashed], dtype=np.int64)
        names = (document.name.split(":") for _, document in documents)
        matches = [self._names.intersection(own) if self._names else () for own in names]
        named = np.asarray([bool(match) for match in matches], dtype=bool)
        files = np.asarray([index for index, _ in documents], dtype=np.int64)
        found_names = sorted(set().union(*matches))
        digests = np.frombuffer(b"".join(digest for _, digest in hashed), np.uint8).reshape(-1, 32)
        tokens = np.concatenate(parts or [eot[:0]])
        return Encoded(lengths, sizes, named, digests, tokens, files, skipped, found_names)


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
