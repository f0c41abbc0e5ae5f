"""Read sources as a stream of blocks of documents, from any position on, in bounded memory.

A block holds text as bytes, which the threads that encode it also decode and parse. A block ends between two
documents; block borders do not affect the output. Only bad documents are lost: documents before the damage in
a file are kept.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.data import encodings, readers, records
from based_jax.data.documents import Document, Skipped, Unusable
from based_jax.data.encodings import AUTO, ReadOptions
from based_jax.data.fasta import read_sequences
from based_jax.data.hub import parse_hub, stream_texts
from based_jax.data.report import FileReport
from based_jax.data.shards.parts import MAX_LINE, Part, documents_of, texts_part, too_long
from based_jax.data.sources import File, status_of

BLOCK = 1 << 20  # bytes of text after which a block ends

MAX_DOCUMENT = 1 << 30  # bytes of a text file or letters of a FASTA record; larger ones are skipped

MAX_HTML = 16 << 20  # bytes of an HTML file: 200 KB of nothing but tags take a second to parse
_MAX_PARTS = 4096


class Position(NamedTuple):
    """Position in the sources where a block ends and the next one begins."""

    unit: int  # index of the file or data set
    offset: int  # bytes of decompressed JSON lines, rows, or records of the unit that were read
    number: int  # number of lines before the offset


class Block(NamedTuple):
    """Some documents, in order."""

    items: list[tuple[int, Part | Skipped]]  # with the index of the file; encoding a part may skip more
    end: Position
    done: int  # bytes on disk of all files up to here

    @property
    def size(self) -> int:
        return sum(len(item.data) for _, item in self.items if isinstance(item, Part))


@dataclass(frozen=True)
class Unit:
    """A file or, if `path` is None, a data set of the hub."""

    name: str
    path: Path | None
    size: int  # bytes on disk
    is_plain: bool = False  # see `sources.File`

    def report(self) -> FileReport:
        """Begin the report about it."""
        return FileReport(self.name, self.size)


def units_of(files: Iterable[File]) -> list[Unit]:
    """Return the units of files that hold text."""
    found = ((file, status_of(file.path)) for file in files)
    return [Unit(file.name, file.path, state.st_size if state else 0, file.is_plain) for file, state in found]


def read_blocks(
    units: Sequence[Unit],
    start: Position = Position(0, 0, 0),  # noqa: B008
    options: ReadOptions = ReadOptions(),  # noqa: B008
    max_bytes: int | None = None,
) -> Iterator[Block]:
    """Yield the documents of the units from `start` on: the end of an earlier block, or zeros.

    Args:
        max_bytes: limit of each file's text; None: text files and FASTA records have at most `MAX_DOCUMENT`.
    """
    items, size = list[tuple[int, Part | Skipped]](), 0
    done = sum(unit.size for unit in units[: start.unit])
    for index in range(start.unit, len(units)):
        unit, first = units[index], start if index == start.unit else Position(index, 0, 0)
        try:
            for item, offset, number, bytes_read in _read(unit, first, options, max_bytes):
                items.append((index, item))
                size += len(item.data) if isinstance(item, Part) else 0
                if size >= BLOCK or len(items) >= _MAX_PARTS:
                    yield Block(items, Position(index, offset, number), done + bytes_read)
                    items, size = [], 0
        except Unusable as error:
            items.append((index, error.skipped(unit.name)))
        done += unit.size
        if size >= BLOCK or len(items) >= _MAX_PARTS or index == len(units) - 1:
            yield Block(items, Position(index + 1, 0, 0), done)
            items, size = [], 0


def read_documents(
    units: Sequence[Unit], options: ReadOptions, max_bytes: int | None = None
) -> Iterator[tuple[int, Document | Skipped, str | None]]:
    """Yield the index of the file, a document or what was skipped, and the file's encoding, if known."""
    for block in read_blocks(units, options=options, max_bytes=max_bytes):
        for index, item in block.items:
            if isinstance(item, Skipped):
                yield index, item, None
                continue
            for found in documents_of(item, options.text_field):
                yield index, found, item.encoding


_Item = tuple[Part | Skipped, int, int, int]
"""What was read, the offset and number after it, and the bytes read from the file so far."""


class _File(NamedTuple):
    """A file that is read as text."""

    name: str
    path: Path
    field: str
    encoding: str
    max_bytes: int | None

    def chunks(self, max_bytes: int | None = None, **options: Any) -> Iterator[bytes]:
        limit = max_bytes if self.max_bytes is None else self.max_bytes
        return readers.read_chunks(self.path, self.name, limit, encoding=self.encoding, **options)


def _read(unit: Unit, start: Position, options: ReadOptions, max_bytes: int | None) -> Iterator[_Item]:
    offset, field = start.offset, options.text_field
    if unit.path is None:
        yield from _read_hub(unit, offset, field)
        return
    extension, _ = readers.kind_of(unit.path)
    if extension == readers.PARQUET_EXTENSION and not unit.is_plain:
        yield from _read_parquet(unit, unit.path, field, offset)
        return
    codec = _detect(unit.path, unit.name) if options.codec == AUTO else options.codec
    file = _File(unit.name, unit.path, field, codec, max_bytes)
    if unit.is_plain:
        extension = ""
    if extension in readers.FASTA_EXTENSIONS:
        yield from _read_fasta(file, offset)
    elif extension == readers.JSONL_EXTENSION or (extension == readers.JSON_EXTENSION and _has_lines(file)):
        yield from _read_lines(file, offset, start.number)
    elif not offset:
        yield _read_whole(file, extension), 1, 0, unit.size


def _detect(path: Path, name: str) -> str:
    codec = encodings.detect(readers.read_chunks(path, name, None, binary=True))
    if codec is None:
        raise Unusable("binary or in an unknown encoding")
    return codec


def _read_whole(file: _File, extension: str) -> Part:
    """Read a text file, or a JSON file that is not JSON lines."""
    is_json, is_html = extension == readers.JSON_EXTENSION, extension in readers.HTML_EXTENSIONS
    if is_html:
        file = file._replace(max_bytes=min(MAX_HTML, file.max_bytes or MAX_HTML))
    text = b"".join(file.chunks(records.MAX_PARSED if is_json else MAX_DOCUMENT))
    if not is_json:
        return Part("html" if is_html else "texts", file.name, None, [len(text)], text, file.encoding)
    try:
        texts = records.parse_array(text.decode(encodings.UTF_8), file.field, file.name) if text else []
    except UnicodeDecodeError as error:
        raise Unusable(encodings.not_in(encodings.UTF_8)) from error
    return texts_part(file.name, 1, texts)._replace(encoding=file.encoding)


def _has_lines(file: _File) -> bool:
    """Return whether a ``.json`` file has one object per line."""
    head = b""
    for chunk in file.chunks(binary=True):
        head += chunk
        begin = head.removeprefix(readers.BYTE_ORDER_MARK).lstrip()
        if begin and (not begin.startswith(b"{") or b"\n" in begin or len(head) > records.MAX_PARSED):
            break
    return records.is_json_lines(head.decode("utf-8-sig", errors="replace"))


def _read_lines(file: _File, offset: int, number: int) -> Iterator[_Item]:
    """Yield blocks of whole lines; the last line may lack a newline."""
    progress = _BytesRead()
    pending, size, has_end, is_too_long = list[bytes](), 0, False, False
    for chunk in file.chunks(offset=offset, binary=True, report=progress.update):
        if is_too_long:
            end = chunk.find(b"\n") + 1
            offset += end or len(chunk)
            if not end:
                continue
            number, chunk, is_too_long = number + 1, chunk[end:], False
            yield too_long(file.name, number), offset, number, progress.total
        pending.append(chunk)
        size, has_end = size + len(chunk), has_end or b"\n" in chunk
        if size >= BLOCK and has_end:
            data = b"".join(pending)
            cut = data.rfind(b"\n") + 1
            first, offset, number = number + 1, offset + cut, number + data.count(b"\n", 0, cut)
            part = Part("lines", file.name, first, [cut], data[:cut], file.encoding)
            yield part, offset, number, progress.total
            pending, size, has_end = [data[cut:]], len(data) - cut, False
        elif size > MAX_LINE:
            offset, pending, size, is_too_long = offset + size, [], 0, True
    if is_too_long:
        yield too_long(file.name, number + 1), offset, number + 1, progress.total
    elif data := b"".join(pending):
        end = offset + size, number + data.count(b"\n") + 1
        part = Part("lines", file.name, number + 1, [len(data)], data, file.encoding)
        yield part, *end, progress.total


def _read_parquet(unit: Unit, path: Path, field: str, offset: int) -> Iterator[_Item]:
    for end, texts in readers.parquet_texts(path, unit.name, field, offset):
        values = [text or "" for text in texts.to_pylist()]
        yield texts_part(unit.name, end - len(values) + 1, values), end, 0, 0


def _read_fasta(file: _File, offset: int) -> Iterator[_Item]:
    progress = _BytesRead()
    try:
        chunks = file.chunks(report=progress.update)
        items = read_sequences(chunks, file.name, file.max_bytes or MAX_DOCUMENT)
        for count, item in enumerate(items, start=1):
            if count > offset:
                if not isinstance(item, Skipped):
                    item = Part("texts", item[0], None, [len(item[1])], item[1], file.encoding)
                yield item, count, 0, progress.total
    except UnicodeDecodeError as error:
        raise Unusable(encodings.not_in(encodings.UTF_8)) from error
    except ValueError as error:
        raise Unusable("not FASTA", str(error)) from error


def _read_hub(unit: Unit, offset: int, field: str) -> Iterator[_Item]:
    """Yield the rows of a streamed data set."""
    name = parse_hub(unit.name).name
    group, size, count = list[str](), 0, offset
    for text in stream_texts(unit.name, offset, field):
        group.append(text)
        count, size = count + 1, size + len(text)
        if size >= BLOCK or len(group) >= _MAX_PARTS:
            yield texts_part(name, count - len(group) + 1, group), count, 0, 0
            group, size = [], 0
    if group:
        yield texts_part(name, count - len(group) + 1, group), count, 0, 0


class _BytesRead:
    """Number of bytes read from a file so far."""

    total = 0

    def update(self, total: int) -> None:
        self.total = total
