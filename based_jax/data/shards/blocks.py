"""Find the files to tokenize, and group their documents into blocks, from any position on, in bounded memory.

A block ends between two documents; block borders do not affect the output.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from based_jax.data.documents import Document, Skipped, Unusable
from based_jax.data.encodings import ReadOptions
from based_jax.data.hub import HUB, hub_fingerprint
from based_jax.data.reading import read_file
from based_jax.data.report import FileReport
from based_jax.data.shards.manifest import SourceRecord
from based_jax.data.sources import File, find_files, status_of
from based_jax.validate import expect

BLOCK = 1 << 20  # characters of text after which a block ends
_MAX_ITEMS = 4096


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
    encodings: dict[int, str] = field(default_factory=dict)  # of the files that have one, by index
    size: int = 0  # characters of text

    @property
    def is_full(self) -> bool:
        return self.size >= BLOCK or len(self.items) >= _MAX_ITEMS

    def add(self, index: int, found: Document | Skipped, encoding: str | None = None) -> None:
        self.items.append((index, found))
        self.size += len(found.text) if isinstance(found, Document) else 0
        if encoding is not None:
            self.encodings[index] = encoding


def read_blocks(
    files: Sequence[File],
    start: Position = Position(0, 0, 0),  # noqa: B008
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> Iterator[Block]:
    """Yield the documents of the files from `start` on: the end of an earlier block, or zeros."""
    block, done = Block(), sum(file.size for file in files[: start.file])
    for index in range(start.file, len(files)):
        offset, number = start[1:] if index == start.file else (0, 0)
        try:
            for item in read_file(files[index], options, offset, number):
                block.add(index, item.found, item.encoding)
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

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find_sources(specs: Sequence[str], include: str | None = None) -> Sources:
    """Find the files that the specs name (see `based_jax.data.sources`).

    Errors: see `load_documents`.
    """
    files, records, others = list[File](), list[SourceRecord](), list[FileReport]()
    for spec in specs:
        expect(bool(spec), "data", spec, "a file, a directory, a glob, 'stdlib' or 'hf:NAME'")
        digest, own = hashlib.sha256(), list[File]()
        if spec.startswith(HUB):
            files.append(File(spec, None))
            digest.update(hub_fingerprint(spec).encode())
        else:
            own, left_out = find_files(spec, include)
            others += left_out
            for file in own:
                state = file.path and status_of(file.path)
                times = [(state.st_size, state.st_mtime_ns)] if state else []
                digest.update(f"{file.name}\0{times}\n".encode("utf-8", errors="replace"))
        size = sum(file.size for file in own)
        records.append(SourceRecord(spec, include, len(own), size, digest.hexdigest()))
        files += own
    return Sources(files, tuple(records), others)
