"""Read a file's documents: text, JSON, JSON lines, Parquet or FASTA, by extension, possibly compressed.

A file is read as a whole, so its text is limited to `MAX_BYTES`, and if compressed also to `MAX_RATIO` times
its own size, which ordinary text does not reach and a decompression bomb does.

A damaged file does not fail the corpus: it is returned as `Skipped`. A broken line of JSON, or a FASTA file
without a first header, is an error that names the line, since the file is not what its extension claims. A
``.json`` file is an array of objects, one object, or JSON lines. `based_jax.data.shards.blocks` reads the
same kinds of files as streams.
"""

import codecs
import contextlib
import gzip
import importlib
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from based_jax.data.documents import Document, Skipped
from based_jax.data.fasta import parse_fasta
from based_jax.files import parse_json

TEXT_EXTENSIONS = (".txt", ".py", ".md")
JSONL_EXTENSION, JSON_EXTENSION, PARQUET_EXTENSION = ".jsonl", ".json", ".parquet"
FASTA_EXTENSIONS = (".fa", ".fasta", ".fna")
COMPRESSIONS = (".gz", ".zst")
_EXTENSIONS = (*TEXT_EXTENSIONS, JSONL_EXTENSION, JSON_EXTENSION, *FASTA_EXTENSIONS)
KNOWN_FILES = f"{' '.join(_EXTENSIONS)}, each also with {' or '.join(COMPRESSIONS)}; {PARQUET_EXTENSION}"

BYTE_ORDER_MARK = codecs.BOM_UTF8  # at the beginning of a file, not part of its text
MAX_BYTES = 16 << 30  # default limit of the text in one file; an argument of `load_documents`
MAX_RATIO = 100  # maximum bytes of text per byte of a compressed file, beyond the first 64 MiB

MAX_JSON = 128 << 20  # size limit of a ``.json`` file that is not JSON lines, as it is parsed as a whole
_MIN_LIMIT = 64 << 20
_CHUNK = 1 << 20  # bytes
_ZSTD_STEP = 1 << 11  # bytes that zstd unpacks at once: every four of them may become 128 KiB
_ROWS = 64  # rows of a Parquet file to read at once
_LINE = re.compile("[^\n]+")
_NO_TEXT = "no string field 'text'"  # reason to skip, for counting


class Unusable(Exception):
    """A file has no usable text; the argument is the reason."""


class TooLarge(ValueError):
    """A file has more text than allowed."""


class BrokenRecord(ValueError):
    """JSON that is not an object with a text; `reason` is a short label for counting."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def is_known_file(path: Path) -> bool:
    """Return whether the file has a known text extension."""
    extension, compression = kind_of(path)
    return extension in _EXTENSIONS or (extension == PARQUET_EXTENSION and not compression)


def without_compression(name: str) -> str:
    """Return a file's name without its compression extension."""
    return next((name[: -len(end)] for end in COMPRESSIONS if name.lower().endswith(end)), name)


def read_file(
    path: Path, name: str, max_bytes: int = MAX_BYTES, *, is_plain: bool = False
) -> tuple[list[Document], list[Skipped]]:
    """Read one file; return its nonempty documents, and what was skipped.

    Args:
        path: a file; one with an unknown extension is read as UTF-8 text.
        name: the name of its documents; those of a ``.jsonl`` file become ``name:line``, those of a
            ``.json`` or ``.parquet`` file ``name:number`` (from 1), those of a FASTA file ``name:record``.
        max_bytes: limit of the file's text.
        is_plain: read UTF-8 text, uncompressed, whatever the extension.

    Raises:
        ValueError: a line of a ``.jsonl`` file, or an object of a ``.json`` file, has no string field "text";
            a ``.parquet`` file has no such column; a FASTA file does not begin with a header; more text than
            `max_bytes` or `MAX_RATIO` allows.
        ImportError: the package for a ``.zst`` or ``.parquet`` file is not installed.
    """
    extension = "" if is_plain else kind_of(path)[0]
    chunks = read_chunks(path, name, max_bytes)
    try:
        if extension == PARQUET_EXTENSION:
            rows = (text for _, texts in parquet_texts(path, name) for text in texts.to_pylist())
            return _nonempty(((n, text or "") for n, text in enumerate(rows, start=1)), name)
        if extension in FASTA_EXTENSIONS:
            return parse_fasta(chunks, name)
        # Decoding bytes, unlike reading in text mode, keeps "\r\n" and lone "\r" unchanged.
        text = b"".join(chunks).decode("utf-8")
    except Unusable as error:
        return [], [Skipped(name, str(error))]
    except UnicodeDecodeError:
        return [], [Skipped(name, "not UTF-8")]
    if not text:
        return [], [Skipped(name, "empty")]
    if extension == JSON_EXTENSION and not is_json_lines(text):
        return _nonempty(enumerate(parse_records(text, name), start=1), name)
    is_lines = extension in (JSON_EXTENSION, JSONL_EXTENSION)
    return _parse_lines(text, name) if is_lines else ([Document(name, text)], [])


def import_optional(module: str, argument: str, value: str, extra: str = "data") -> ModuleType:
    """Import a package of an extra, or raise an ImportError with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package, install = module.partition(".")[0], f"pip install 'based-jax[{extra}]'"
        expected = f"the package {package!r} to be installed; it comes with: {install}"
        raise ImportError(f"{argument} = {value!r}: expected {expected}") from error


def kind_of(path: Path) -> tuple[str, str]:
    """Return the extension of the text and that of the compression ("" for none), in lower case."""
    name = path.name.lower()
    text = without_compression(name)
    return os.path.splitext(text)[1], name[len(text) :]


def read_chunks(
    path: Path,
    name: str,
    max_bytes: int | None = MAX_BYTES,
    *,
    offset: int = 0,
    binary: bool = False,
    report: Callable[[int], None] = lambda position: None,
) -> Iterator[bytes]:
    """Yield a file's decompressed text in chunks of bytes.

    Args:
        max_bytes: limit of the text; None for no limit except `MAX_RATIO`.
        offset: bytes of text to skip at the beginning.
        binary: whether zero bytes are allowed, and a byte order mark at the beginning is kept.
        report: called before each chunk with the number of the file's own bytes read so far.

    Raises:
        Unusable: the file is unreadable, damaged or, unless `binary`, not text.
        TooLarge: the file has more text than allowed.
        ImportError: see `read_file`.
    """
    compression = kind_of(path)[1]
    skip = offset if compression else 0
    chunks = _read(path, compression, name, 0 if compression else offset, binary, report)
    limited = _limited(chunks, path, bool(compression), max_bytes)
    for chunk in limited if binary else _without_mark(limited):
        if skip < len(chunk):
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def parquet_texts(path: Path, name: str, first: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield the column "text" of a Parquet file from row `first` on, some rows at a time.

    Yields:
        The number of rows read so far, and a pyarrow array of large strings (None where a row has no text).

    Raises:
        Unusable: the file is unreadable or damaged.
        BrokenRecord: it has no column "text" of strings.
        ImportError: `pyarrow` is not installed.
    """
    arrow = import_optional("pyarrow", "file", name)
    parquet = import_optional("pyarrow.parquet", "file", name)
    try:
        # With a buffer, a column is read page by page instead of as a whole.
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_CHUNK) as file:
            schema = file.schema_arrow
            kinds = (arrow.string(), arrow.large_string(), arrow.string_view())
            if "text" not in schema.names or schema.field("text").type not in kinds:
                found = ", ".join(schema.names)
                raise BrokenRecord(f"{name}: expected a column 'text' of strings; it has {found}", _NO_TEXT)
            rows, groups = 0, list(range(file.num_row_groups))
            while groups and rows + file.metadata.row_group(groups[0]).num_rows <= first:
                rows += file.metadata.row_group(groups.pop(0)).num_rows
            batches = file.iter_batches(_ROWS, groups, ["text"], use_threads=False) if groups else ()
            for batch in batches:
                rows += batch.num_rows
                if rows > first:
                    texts = batch.column(0).cast(arrow.large_string())
                    yield rows, texts.slice(max(0, first - (rows - batch.num_rows)))
    except arrow.ArrowException as error:
        raise Unusable("damaged") from error
    except OSError as error:
        raise Unusable("unreadable" if not os.access(path, os.R_OK) else "damaged") from error


def is_json_lines(text: str) -> bool:
    """Return whether a ``.json`` file has one object per line, judging by its first nonblank line."""
    first = text.lstrip()
    line = first[: first.find("\n") + 1] or first
    if not line.startswith("{") or not line.rstrip().endswith("}"):
        return False
    with contextlib.suppress(ValueError):
        return isinstance(parse_json(line, "line"), dict)
    return False


def parse_records(text: str, name: str) -> list[str]:
    """Return the texts of a ``.json`` file: of its one object, or of each object in its array.

    Raises:
        TooLarge: more than `MAX_JSON` characters.
        BrokenRecord: not JSON, or not such objects.
    """
    expected = f"{name}: expected a JSON object with a string field 'text', or an array of such"
    if len(text) > MAX_JSON:
        size = f"{len(text)} characters, expected at most {MAX_JSON}"
        raise TooLarge(f"{name}: {size} in a .json file; write one object per line, as .jsonl")
    try:
        content = parse_json(text, "file")
    except ValueError as error:
        raise BrokenRecord(f"{expected}, but this is not JSON ({error})", "not JSON") from error
    return [text_of(record, expected) for record in (content if isinstance(content, list) else [content])]


def text_of(record: Any, expected: str) -> str:
    """Return the text of a parsed object; a `BrokenRecord` message begins with `expected`."""
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise BrokenRecord(f"{expected}, but there is none", _NO_TEXT)
    try:
        text.encode("utf-8")  # an escaped lone surrogate passes the parser but is not text
    except UnicodeEncodeError as error:
        problem = f"its text is not valid Unicode ({error.reason})"
        raise BrokenRecord(f"{expected}, but {problem}", "not Unicode") from error
    return text


def _read(
    path: Path, compression: str, name: str, offset: int, binary: bool, report: Callable[[int], None]
) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            decompress = {".gz": _read_gzip, ".zst": _read_zstd}.get(compression, _read_plain)
            for chunk in decompress(file, name):
                if not binary and b"\0" in chunk:
                    raise Unusable("binary")
                report(file.tell())
                yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Unusable("damaged") from error
    except OSError as error:
        raise Unusable("unreadable") from error


def _without_mark(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a text without a byte order mark at its beginning."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= len(BYTE_ORDER_MARK):
            break
    yield head.removeprefix(BYTE_ORDER_MARK)
    yield from chunks


def _limited(chunks: Iterator[bytes], path: Path, compressed: bool, max_bytes: int | None) -> Iterator[bytes]:
    """Yield the chunks; raise `TooLarge` beyond the limits on a file's text."""
    limit, size = sys.maxsize if max_bytes is None else max_bytes, 0
    with contextlib.suppress(OSError):  # reading the file reports the reason
        size = path.stat().st_size
    advice = "split the file, or raise max_bytes of load_documents"
    if compressed and (unpacked := max(_MIN_LIMIT, MAX_RATIO * size)) < limit:
        limit, advice = unpacked, f"{MAX_RATIO} times its own size; if you trust it, unpack it first"
    total = size  # compressed, a file has more text than bytes
    if total <= limit:
        total = 0
        for chunk in chunks:
            total += len(chunk)
            if total > limit:
                break
            yield chunk
    if total > limit:
        raise TooLarge(f"{path}: {total} or more bytes of text, expected at most {limit} ({advice})")


def _read_plain(file: BinaryIO, name: str) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _read_gzip(file: BinaryIO, name: str) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        while chunk := unpacked.read(_CHUNK):
            yield chunk


def _read_zstd(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield all frames of a zstd file; EOFError if the last is truncated, which a stream reader hides."""
    zstandard = import_optional("zstandard", "file", name)
    frame = None
    while chunk := file.read(_ZSTD_STEP):
        while chunk:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from error
            if not frame.eof:
                break
            chunk, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("the last zstd frame has no end")


def _parse_lines(text: str, name: str) -> tuple[list[Document], list[Skipped]]:
    # Only "\n" ends a line: str.splitlines would also split at U+2028, which is legal inside a JSON string.
    lines = ((number, line) for number, line in _lines(text) if line.strip())
    return _nonempty(((number, parse_line(line, name, number)) for number, line in lines), name)


def _nonempty(texts: Iterable[tuple[int, str]], name: str) -> tuple[list[Document], list[Skipped]]:
    """Return the nonempty texts as documents, and the empty ones, or the file if all are, as skipped."""
    found = [Document(f"{name}:{number}", text) for number, text in texts]
    empty = [Skipped(document.name, "empty") for document in found if not document.text]
    return [document for document in found if document.text], empty if found else [Skipped(name, "empty")]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered nonempty lines: a list of all lines may take ten times the text's memory."""
    number, end = 1, 0
    for line in _LINE.finditer(text):
        number += text.count("\n", end, line.start())
        end = line.end()
        yield number, line[0]


def parse_line(line: str | bytes, name: str, number: int) -> str:
    """Return the text of a line of JSON; a `BrokenRecord` message names the file and the line."""
    expected = f"{name}, line {number}: expected a JSON object with a string field 'text'"
    try:
        record = parse_json(line, "line")
    except ValueError as error:
        raise BrokenRecord(f"{expected}, but this is not JSON ({error})", "not JSON") from error
    return text_of(record, expected)
