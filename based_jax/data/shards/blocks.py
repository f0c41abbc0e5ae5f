"""Read sources as a stream of blocks of documents, from any position on, in bounded memory.

A block holds text as bytes, which the threads that encode it also decode and parse. A block ends between two
documents; block borders do not affect the output.

Unlike in `load_documents`, only bad documents are lost: a broken line of JSON is skipped and counted, and
documents before the damage in a file are kept.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from based_jax.data import readers
from based_jax.data.documents import Skipped
from based_jax.data.fasta import read_sequences
from based_jax.data.hub import HUB, hub_fingerprint, parse_hub, stream_texts
from based_jax.data.shards.encoder import MAX_LINE
from based_jax.data.shards.manifest import SourceRecord
from based_jax.data.shards.megatron import INDEX, TOKENS, TokenFile
from based_jax.data.sources import find_files
from based_jax.validate import expect

BLOCK = 1 << 20  # bytes of text after which a block ends

MAX_DOCUMENT = 1 << 30  # bytes of a text file or letters of a FASTA record; larger ones are skipped

_MAX_PARTS = 4096


class Position(NamedTuple):
    """Position in the sources where a block ends and the next one begins."""

    unit: int  # index of the file or data set
    offset: int  # bytes of decompressed JSON lines, rows, or documents of the unit that were read
    number: int  # number of lines before the offset


class Part(NamedTuple):
    """Documents of one file in one encoding, the input of `based_jax.data.shards.encoder`."""

    kind: str  # "texts": UTF-8 text; "lines" of JSON; the ids of a `TokenFile`, named by their dtype
    name: str  # of the file, or of the document if `number` is None
    number: int | None  # of the first document, or line
    sizes: list[int]  # bytes of each document; for "lines" of all together
    data: bytes


class Block(NamedTuple):
    """Some documents, in order."""

    parts: list[Part]
    skipped: list[Skipped]  # of the files; errors inside a part are found when it is encoded
    end: Position
    done: int  # bytes on disk of all files up to here

    @property
    def size(self) -> int:
        return sum(len(part.data) for part in self.parts)


@dataclass(frozen=True)
class Unit:
    """A file or, if `path` is None, a data set of the hub."""

    name: str
    path: Path | None
    size: int  # bytes on disk
    is_plain: bool = False  # see `sources.File`


class Sources(NamedTuple):
    """All files of all sources, in order."""

    units: list[Unit]
    records: tuple[SourceRecord, ...]
    skipped: list[Skipped]  # directories that cannot be listed
    left_out: dict[str, int]  # files not read, by suffix

    @property
    def size(self) -> int:
        return sum(unit.size for unit in self.units)


def find_sources(specs: Sequence[str], include: str | None = None) -> Sources:
    """Find the files that the specs name (see `based_jax.data.sources`); a pair .bin and .idx is one file.

    Errors: see `load_documents`.
    """
    found = Sources([], (), [], {})
    for spec in specs:
        expect(bool(spec), "data", spec, "a file, a directory, a glob, 'stdlib' or 'hf:NAME'")
        units, digest = list[Unit](), hashlib.sha256()
        if spec.startswith(HUB):
            units.append(Unit(spec, None, 0))
            digest.update(hub_fingerprint(spec).encode())
        else:
            path = Path(spec)
            is_pair = path.suffix == TOKENS and path.with_suffix(INDEX).is_file()
            spec_of_files = str(path.with_suffix(INDEX)) if is_pair else spec
            files = find_files(spec_of_files, found.skipped, include, (INDEX,))
            for name, path, is_plain in files.found:
                if is_plain and path.suffix.lower() == TOKENS and path.with_suffix(INDEX).is_file():
                    continue  # read with its index
                pair = [path.with_suffix(TOKENS)] if path.suffix.lower() == INDEX else []
                states = [state for path in (path, *pair) if (state := _stat(path))]
                units.append(Unit(name, path, sum(state.st_size for state in states), is_plain))
                times = [(state.st_size, state.st_mtime_ns) for state in states]
                digest.update(f"{name}\0{times}\n".encode("utf-8", errors="replace"))
            for suffix, count in files.left_out.items():
                found.left_out[suffix] = found.left_out.get(suffix, 0) + count
        size, count = sum(unit.size for unit in units), sum(unit.path is not None for unit in units)
        record = SourceRecord(spec, include, count, size, digest.hexdigest())
        found = found._replace(units=found.units + units, records=(*found.records, record))
    if any(unit.name.lower().endswith(INDEX) for unit in found.units):
        found.left_out.pop(TOKENS, None)
    return found


def read_blocks(units: Sequence[Unit], start: Position) -> Iterator[Block]:
    """Yield the documents of the units from `start` on: the end of an earlier block, or zeros."""
    parts, skipped, size = list[Part](), list[Skipped](), 0
    done = sum(unit.size for unit in units[: start.unit])
    for index in range(start.unit, len(units)):
        unit, first = units[index], start if index == start.unit else Position(index, 0, 0)
        try:
            for item, offset, number, bytes_read in _read(unit, first.offset, first.number):
                if isinstance(item, Skipped):
                    skipped.append(item)
                else:
                    parts.append(item)
                    size += len(item.data)
                if size >= BLOCK or len(parts) + len(skipped) >= _MAX_PARTS:
                    yield Block(parts, skipped, Position(index, offset, number), done + bytes_read)
                    parts, skipped, size = [], [], 0
        except readers.Unusable as error:
            skipped.append(Skipped(unit.name, str(error)))
        except readers.TooLarge:
            skipped.append(Skipped(unit.name, "too large"))
        done += unit.size
        if size >= BLOCK or len(parts) + len(skipped) >= _MAX_PARTS or index == len(units) - 1:
            yield Block(parts, skipped, Position(index + 1, 0, 0), done)
            parts, skipped, size = [], [], 0


_Item = tuple[Part | Skipped, int, int, int]
"""What was read, the offset and number after it, and the bytes read from the file so far."""


def _read(unit: Unit, offset: int, number: int) -> Iterator[_Item]:
    if unit.path is None:
        yield from _read_hub(unit, offset)
        return
    extension, compression = readers.kind_of(unit.path)
    if unit.is_plain:
        if not offset:
            yield from _read_whole(unit, unit.path, "")
    elif extension == INDEX and not compression:
        yield from _read_tokens(unit, unit.path, offset)
    elif extension == readers.PARQUET_EXTENSION:
        yield from _read_parquet(unit, unit.path, offset)
    elif extension in readers.FASTA_EXTENSIONS:
        yield from _read_fasta(unit, unit.path, offset)
    elif extension == readers.JSONL_EXTENSION or (extension == readers.JSON_EXTENSION and _has_lines(unit)):
        yield from _read_lines(unit, unit.path, offset, number)
    elif not offset:
        yield from _read_whole(unit, unit.path, extension)


def _read_whole(unit: Unit, path: Path, extension: str) -> Iterator[_Item]:
    """Read a text file, or a JSON file that is not JSON lines."""
    is_json = extension == readers.JSON_EXTENSION
    limit = readers.MAX_JSON if is_json else MAX_DOCUMENT
    text = b"".join(readers.read_chunks(path, unit.name, limit))
    if not is_json:
        yield Part("texts", unit.name, None, [len(text)], text), 1, 0, unit.size
        return
    try:
        texts = readers.parse_records(text.decode("utf-8"), unit.name)
    except UnicodeDecodeError as error:
        raise readers.Unusable("not UTF-8") from error
    except readers.BrokenRecord as error:
        raise readers.Unusable(error.reason) from error
    yield _texts(unit.name, 1, texts), 1, 0, unit.size


def _has_lines(unit: Unit) -> bool:
    """Return whether a ``.json`` file has one object per line."""
    head = b""
    assert unit.path is not None
    for chunk in readers.read_chunks(unit.path, unit.name, None, binary=True):
        head += chunk
        begin = head.removeprefix(readers.BYTE_ORDER_MARK).lstrip()
        if begin and (not begin.startswith(b"{") or b"\n" in begin or len(head) > readers.MAX_JSON):
            break
    return readers.is_json_lines(head.decode("utf-8-sig", errors="replace"))


def _read_lines(unit: Unit, path: Path, offset: int, number: int) -> Iterator[_Item]:
    """Yield blocks of whole lines; the last line may lack a newline."""
    progress = _BytesRead()
    pending, size, has_end, is_too_long = list[bytes](), 0, False, False
    for chunk in readers.read_chunks(
        path, unit.name, None, offset=offset, binary=True, report=progress.update
    ):
        if is_too_long:
            end = chunk.find(b"\n") + 1
            offset += end or len(chunk)
            if not end:
                continue
            number, chunk, is_too_long = number + 1, chunk[end:], False
            yield Skipped(f"{unit.name}:{number}", "too large"), offset, number, progress.total
        pending.append(chunk)
        size, has_end = size + len(chunk), has_end or b"\n" in chunk
        if size >= BLOCK and has_end:
            data = b"".join(pending)
            cut = data.rfind(b"\n") + 1
            first, offset, number = number + 1, offset + cut, number + data.count(b"\n", 0, cut)
            yield Part("lines", unit.name, first, [cut], data[:cut]), offset, number, progress.total
            pending, size, has_end = [data[cut:]], len(data) - cut, False
        elif size > MAX_LINE:
            offset, pending, size, is_too_long = offset + size, [], 0, True
    if is_too_long:
        yield Skipped(f"{unit.name}:{number + 1}", "too large"), offset, number + 1, progress.total
    elif data := b"".join(pending):
        end = offset + size, number + data.count(b"\n") + 1
        yield Part("lines", unit.name, number + 1, [len(data)], data), *end, progress.total


def _read_parquet(unit: Unit, path: Path, offset: int) -> Iterator[_Item]:
    try:
        for end, texts in readers.parquet_texts(path, unit.name, offset):
            values = [text or "" for text in texts.to_pylist()]
            yield _texts(unit.name, end - len(values) + 1, values), end, 0, 0
    except readers.BrokenRecord as error:
        raise readers.Unusable(error.reason) from error


def _read_fasta(unit: Unit, path: Path, offset: int) -> Iterator[_Item]:
    progress = _BytesRead()
    try:
        chunks = readers.read_chunks(path, unit.name, None, report=progress.update)
        items = read_sequences(chunks, unit.name, MAX_DOCUMENT)
        for count, item in enumerate(items, start=1):
            if count > offset:
                if not isinstance(item, Skipped):
                    item = Part("texts", item[0], None, [len(item[1])], item[1])
                yield item, count, 0, progress.total
    except UnicodeDecodeError as error:
        raise readers.Unusable("not UTF-8") from error
    except readers.TooLarge:
        raise
    except ValueError as error:
        raise readers.Unusable("not FASTA") from error


def _read_tokens(unit: Unit, path: Path, offset: int) -> Iterator[_Item]:
    """Yield ids as stored; ValueError for a damaged index, as it cannot show which documents are lost."""
    file, group, size = TokenFile.open(path), list[bytes](), 0
    for count, ids in enumerate(file.read(offset), start=offset + 1):
        group.append(ids.tobytes())
        size += ids.nbytes
        if size >= BLOCK or len(group) >= _MAX_PARTS or count == file.documents:
            first, sizes = count - len(group) + 1, [len(data) for data in group]
            part = Part(file.dtype.str, unit.name, first, sizes, b"".join(group))
            yield part, count, 0, unit.size * count // file.documents
            group, size = [], 0


def _read_hub(unit: Unit, offset: int) -> Iterator[_Item]:
    """Yield the rows of a streamed data set."""
    name = parse_hub(unit.name).name
    group, size, count = list[str](), 0, offset
    for text in stream_texts(unit.name, offset):
        group.append(text)
        count, size = count + 1, size + len(text)
        if size >= BLOCK or len(group) >= _MAX_PARTS:
            yield _texts(name, count - len(group) + 1, group), count, 0, 0
            group, size = [], 0
    if group:
        yield _texts(name, count - len(group) + 1, group), count, 0, 0


class _BytesRead:
    """Number of bytes read from a file so far."""

    total = 0

    def update(self, total: int) -> None:
        self.total = total


def _texts(name: str, first: int, texts: Iterable[str]) -> Part:
    encoded = [text.encode("utf-8", errors="surrogatepass") for text in texts]
    return Part("texts", name, first, [len(text) for text in encoded], b"".join(encoded))


def _stat(path: Path) -> os.stat_result | None:
    """Return `os.stat` of a file; None for a broken link, which is reported when it is read."""
    try:
        return path.stat()
    except OSError:
        return None
