"""Read the documents of files and data sets, one after the other, from any position on.

Only bad documents are lost: those before the damage in a file are kept, and a broken line of JSON or a FASTA
record that is too large costs itself alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.data import encodings, readers
from based_jax.data.documents import Document, Skipped, Unusable, parse_line
from based_jax.data.encodings import AUTO, UTF_8, ReadOptions
from based_jax.data.fasta import read_sequences
from based_jax.data.hub import parse_hub, read_texts
from based_jax.data.optional import import_optional
from based_jax.data.report import FileReport
from based_jax.data.sources import File

MAX_LINE = 256 << 20  # bytes of a line of JSON
MAX_DOCUMENT = 1 << 30  # bytes of a text file or letters of a FASTA record
MAX_HTML = 16 << 20  # bytes of an HTML file: 200 KB of nothing but tags take a second to parse


class Item(NamedTuple):
    """A document, or why there is none, and the position after it."""

    found: Document | Skipped
    offset: int  # bytes of JSON lines, as decompressed UTF-8, or number of rows, records or documents
    number: int = 0  # lines of JSON before the offset
    done: int = 0  # bytes read from the file so far
    encoding: str | None = None  # of the file, if its text has one


def read_all(
    files: Sequence[File],
    reports: Sequence[FileReport],
    options: ReadOptions,
    max_bytes: int | None = None,
    *,
    streams: bool = True,
) -> Iterator[Document | Skipped]:
    """Yield what files contain, and report about each of them; for the arguments see `read_file`."""
    for file, report in zip(files, reports, strict=True):
        try:
            for item in read_file(file, options, max_bytes=max_bytes, streams=streams):
                report.add(item.found, item.encoding)
                yield item.found
        except Unusable as error:
            report.add(error.skipped(file.name))
            yield error.skipped(file.name)
        yield from report.end()


def read_file(
    file: File,
    options: ReadOptions,
    offset: int = 0,
    number: int = 0,
    *,
    max_bytes: int | None = None,
    streams: bool = True,
) -> Iterator[Item]:
    """Yield the documents of a file or data set.

    Args:
        offset, number: those of an earlier item, to continue after it.
        max_bytes: limit of the file's text; None: text files and FASTA records have at most `MAX_DOCUMENT`.
        streams: read a data set while it is downloaded, and store nothing.

    Raises:
        Unusable: the file is unreadable, damaged, too large or not what its name says, from here on.
        ImportError: the file or an option needs a package of an extra that is not installed.
    """
    field, path = options.text_field, file.path
    if path is None:
        name, rows = parse_hub(file.name).name, read_texts(file.name, offset, field, streams=streams)
        for count, text in enumerate(rows, start=offset):
            yield Item(_document(f"{name}:{count}", text), count + 1)
        return
    extension = "" if file.is_plain else readers.kind_of(path)[0]
    text_file = _TextFile(path, file.name, options, max_bytes)
    if extension == readers.JSONL_EXTENSION:
        yield from text_file.lines(field, offset, number)
        return
    for count, found in enumerate(text_file.documents(extension), start=1):
        if count > offset:
            yield Item(found, count, 0, text_file.done, text_file.encoding)


@dataclass
class _TextFile:
    """A file that is read as text."""

    path: Path
    name: str
    options: ReadOptions
    max_bytes: int | None
    done: int = 0  # bytes read from the file so far

    def __post_init__(self) -> None:
        self.encoding = self.options.codec
        if self.encoding == AUTO:
            found = encodings.detect(readers.read_chunks(self.path, self.name, None, binary=True))
            if found is None:
                raise Unusable("binary or in an unknown encoding")
            self.encoding = found

    def _chunks(self, max_bytes: int | None = None, **options: Any) -> Iterator[bytes]:
        limit = max_bytes if self.max_bytes is None else self.max_bytes
        options |= {"encoding": self.encoding, "report": self._progress}
        return readers.read_chunks(self.path, self.name, limit, **options)

    def _progress(self, done: int) -> None:
        self.done = done

    def documents(self, extension: str) -> Iterable[Document | Skipped]:
        """Yield the documents of a text file, or the records of a FASTA file."""
        if extension in readers.FASTA_EXTENSIONS:
            return self._sequences()
        if extension in readers.HTML_EXTENSIONS:
            library = import_optional("inscriptis", "file", self.name, "text")
            return [_document(self.name, library.get_text(self._text(MAX_HTML)).strip())]
        return [_document(self.name, self._text(MAX_DOCUMENT))]

    def _text(self, max_bytes: int) -> str:
        limit = max_bytes if self.max_bytes is None else min(max_bytes, self.max_bytes)
        return _decode(b"".join(self._chunks(limit)))

    def _sequences(self) -> Iterator[Document | Skipped]:
        try:
            yield from read_sequences(self._chunks(), self.name, self.max_bytes or MAX_DOCUMENT)
        except UnicodeDecodeError as error:
            raise Unusable(encodings.not_in(UTF_8)) from error
        except ValueError as error:
            raise Unusable("not FASTA", str(error)) from error

    def lines(self, field: str, offset: int, number: int) -> Iterator[Item]:
        """Yield the documents of lines of JSON; the last line may lack a newline."""
        pending, size = list[bytes](), 0
        for chunk in self._chunks(offset=offset, binary=True):
            # Only "\n" ends a line: str.splitlines would also split at U+2028, which strings may contain.
            for i, part in enumerate(chunk.split(b"\n")):
                if i:
                    offset, number = offset + size + 1, number + 1
                    if (found := self._line(b"".join(pending), size, field, number)) is not None:
                        yield Item(found, offset, number, self.done, self.encoding)
                    pending, size = [], 0
                size += len(part)
                if size <= MAX_LINE:
                    pending.append(part)
        if (found := self._line(b"".join(pending), size, field, number + 1)) is not None:
            yield Item(found, offset + size, number + 1, self.done, self.encoding)

    def _line(self, line: bytes, size: int, field: str, number: int) -> Document | Skipped | None:
        """Return the document of a line of `size` bytes; None if it is blank."""
        if number == 1:
            line = line.removeprefix(readers.BYTE_ORDER_MARK)
        name = f"{self.name}:{number}"
        if size > MAX_LINE:
            message = f"{self.name}, line {number}: expected at most {MAX_LINE} bytes"
            return Skipped(name, "too large", message)
        if not line.strip():
            return None
        try:
            return _document(name, parse_line(_decode(line), field, self.name, number))
        except Unusable as error:
            return error.skipped(name)


def _document(name: str, text: str) -> Document | Skipped:
    return Document(name, text) if text else Skipped(name, "empty")


def _decode(content: bytes) -> str:
    """Decode UTF-8, keeping all ends of lines, unlike text mode."""
    try:
        return content.decode(UTF_8)
    except UnicodeDecodeError as error:
        raise Unusable(encodings.not_in(UTF_8)) from error
