"""Read the documents of files and data sets, from any position on; load those of a corpus into memory.

Only bad documents are lost: those before the damage in a file are kept, and a broken line of JSON or a FASTA
record that is too large costs itself alone.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.data import readers
from based_jax.data.documents import (
    Document,
    FileReport,
    Skipped,
    Unusable,
    count,
    describe_counts,
    describe_not_read,
    describe_skipped,
    parse_line,
)
from based_jax.data.fasta import read_sequences
from based_jax.data.hub import HUB, parse_hub, read_texts
from based_jax.data.readers import UTF_8, ReadOptions
from based_jax.data.sources import File, find_files
from based_jax.validate import expect

MAX_LINE = 256 << 20  # bytes of a line of JSON
MAX_DOCUMENT = 1 << 30  # bytes of a text file or letters of a FASTA record

_LOGGER = logging.getLogger(__name__)


class Item(NamedTuple):
    """A document, or why there is none, and the position after it."""

    found: Document | Skipped
    offset: int  # bytes of JSON lines, as decompressed UTF-8, or number of rows, records or documents
    number: int = 0  # lines of JSON before the offset
    done: int = 0  # bytes read from the file so far


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
                report.add(item.found)
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
            yield Item(found, count, 0, text_file.done)


@dataclass
class _TextFile:
    """A file that is read as text."""

    path: Path
    name: str
    options: ReadOptions
    max_bytes: int | None
    done: int = 0  # bytes read from the file so far

    def _chunks(self, max_bytes: int | None = None, **options: Any) -> Iterator[bytes]:
        limit = max_bytes if self.max_bytes is None else self.max_bytes
        options |= {"encoding": self.options.codec, "report": self._progress}
        return readers.read_chunks(self.path, self.name, limit, **options)

    def _progress(self, done: int) -> None:
        self.done = done

    def documents(self, extension: str) -> Iterable[Document | Skipped]:
        """Yield the documents of a text file, or the records of a FASTA file."""
        if extension in readers.FASTA_EXTENSIONS:
            return self._sequences()
        return [_document(self.name, _decode(b"".join(self._chunks(MAX_DOCUMENT))))]

    def _sequences(self) -> Iterator[Document | Skipped]:
        try:
            yield from read_sequences(self._chunks(), self.name, self.max_bytes or MAX_DOCUMENT)
        except UnicodeDecodeError as error:
            raise Unusable(readers.not_in(UTF_8)) from error
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
                        yield Item(found, offset, number, self.done)
                    pending, size = [], 0
                size += len(part)
                if size <= MAX_LINE:
                    pending.append(part)
        if (found := self._line(b"".join(pending), size, field, number + 1)) is not None:
            yield Item(found, offset + size, number + 1, self.done)

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
        raise Unusable(readers.not_in(UTF_8)) from error


class UnreadableCorpus(ValueError):
    """Files of a corpus are not what their names say; `files` reports about all of them."""

    def __init__(self, message: str, files: Sequence[FileReport]) -> None:
        super().__init__(message)
        self.files = tuple(files)


@dataclass(frozen=True)
class Corpus:
    """What `load_documents` found in `spec`."""

    spec: str
    documents: tuple[Document, ...]
    """at least one, in a deterministic order"""
    skipped: tuple[Skipped, ...] = ()
    files: tuple[FileReport, ...] = ()
    """about every file, those not read included"""

    @cached_property
    def num_bytes(self) -> int:
        """Return the UTF-8 bytes of all documents together."""
        return sum(len(document.text.encode("utf-8")) for document in self.documents)

    def describe(self) -> dict[str, str]:
        """Describe how much was found, what could not be used, with the reasons, and what was not read."""
        number = sum(file.is_read for file in self.files) if not self.spec.startswith(HUB) else 0
        files = f"{count(number, 'file')}, " if number else ""
        found = f"{files}{count(len(self.documents), 'document')}, {self.num_bytes:,} bytes"
        rows = {"data": f"{self.spec}: {found}"}
        rows["skipped"] = describe_skipped(self.skipped) if self.skipped else ""
        rows["not read"] = describe_not_read(self.files)
        return {label: text for label, text in rows.items() if text}


def load_documents(
    spec: str,
    include: str | None = None,
    *,
    max_bytes: int = readers.MAX_BYTES,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> Corpus:
    """Load the documents that `spec` names (see `based_jax.data.sources`) and log one line about them.

    Empty, binary, undecodable, unreadable and damaged files are skipped and listed in `Corpus.skipped`.

    Args:
        include: patterns of file names, separated by commas, such as "*.rst,README": matching files in a
            directory or glob are read as text whatever their suffix; "*" is every file.
        max_bytes: limit of one file's decompressed text.
        options: the encoding of text files, and the field of records that is the text.

    Raises:
        FileNotFoundError: a path that does not exist, or a glob without a match.
        ValueError: no document at all, a file of an unknown kind, a broken line of a ``.jsonl`` file, a
            record without the field, or a file with more text than `max_bytes`, or than 100 times its own
            size (beyond 64 MiB).
        ImportError: a file or an option needs a package of an extra that is not installed.
    """
    files, others = find_files(spec, include)
    has_files = not (spec == "stdlib" or spec.startswith(HUB))
    expected = f"a file, a directory or a glob as data, not {spec!r}"
    expect(include is None or has_files, "include", include, expected)
    reports = [file.report() for file in files]
    found = list(read_all(files, reports, options, max_bytes, streams=False))
    documents = [item for item in found if isinstance(item, Document)]
    skipped = [item for item in found if isinstance(item, Skipped)]
    skipped += [Skipped(other.file, reason) for other in others for reason in other.skipped]
    corpus = Corpus(spec, tuple(documents), tuple(skipped), (*reports, *others))
    _raise_first(corpus.skipped, corpus.files)
    if not documents:
        reasons = f"; skipped {describe_skipped(skipped)}" if skipped else ""
        message = f"data = {spec!r}: expected at least one document with text{reasons}"
        raise UnreadableCorpus(message, corpus.files)
    expected = all(item.reason == "empty" for item in skipped) and all(file.is_read for file in others)
    summary = "; ".join(f"{label} {text}" for label, text in corpus.describe().items())
    _LOGGER.log(logging.INFO if expected else logging.WARNING, "%s", summary)
    return corpus


def load_file(file: File, options: ReadOptions) -> list[Document]:
    """Return the documents of one file, with the errors of `load_documents`; warn of what is skipped."""
    found = list(read_all([file], [file.report()], options, readers.MAX_BYTES))
    skipped = [item for item in found if isinstance(item, Skipped) and item.reason != "empty"]
    _raise_first(skipped, ())
    if skipped:
        _LOGGER.warning("skipped %s", describe_skipped(skipped))
    return [item for item in found if isinstance(item, Document)]


def _raise_first(skipped: Sequence[Skipped], files: Sequence[FileReport]) -> None:
    """Raise an error for what is not as its file's name says, if there is any such item."""
    broken = [item for item in skipped if item.message]
    if broken:
        counts = describe_counts(Counter(item.reason for item in broken))
        more = f"; in all {counts}" if len(broken) > 1 else ""
        raise UnreadableCorpus(f"{broken[0].message}{more}", files)
