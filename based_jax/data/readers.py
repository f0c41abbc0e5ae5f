"""One file -> its documents: plain text, JSON lines or FASTA by its extension, each perhaps compressed.

A file is read as a whole, so its text is limited: to `MAX_BYTES`, and where it is compressed to `MAX_RATIO`
times its own size, which text does not reach and a file made of repetitions does.

A damaged file costs itself, never the corpus: it is returned as `Skipped`. A broken line of JSON, or a FASTA
file that does not begin with a header, is different: the file is not what its name promises, so it is an
error that names the line.
"""

import contextlib
import importlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from based_jax.data.documents import Document, Skipped
from based_jax.data.fasta import parse_fasta
from based_jax.files import parse_json

TEXT_EXTENSIONS = (".txt", ".py", ".md")
JSONL_EXTENSION = ".jsonl"
FASTA_EXTENSIONS = (".fa", ".fasta", ".fna")
COMPRESSIONS = (".gz", ".zst")
_EXTENSIONS = (*TEXT_EXTENSIONS, JSONL_EXTENSION, *FASTA_EXTENSIONS)
KNOWN_FILES = f"{' '.join(_EXTENSIONS)}, each also with {' or '.join(COMPRESSIONS)}"

MAX_BYTES = 16 << 30  # most bytes of text in one file; `load_documents` takes another number
MAX_RATIO = 100  # most bytes of text for one of a compressed file, beyond the first 64 MiB

_MIN_LIMIT = 64 << 20
_CHUNK = 1 << 20  # bytes
_GZIP_STEP = 1 << 16  # bytes; what follows a member is copied, and one may have 20 bytes
_ZSTD_STEP = 1 << 11  # bytes that zstd unpacks at once: each four of them may become 128 KiB
_LINE = re.compile("[^\n]+")


class _Unusable(Exception):
    """A file without text; the argument is the reason."""


def is_known_file(path: Path) -> bool:
    """Whether the name's extension promises text."""
    return _kind(path)[0] in _EXTENSIONS


def without_compression(name: str) -> str:
    """A file's name without the ending of its compression."""
    return next((name[: -len(end)] for end in COMPRESSIONS if name.lower().endswith(end)), name)


def read_file(path: Path, name: str, max_bytes: int = MAX_BYTES) -> tuple[list[Document], list[Skipped]]:
    """Read one file; return its documents, none of them with an empty text, and what was skipped.

    Args:
        path: a file; one whose extension is unknown is read as UTF-8 text.
        name: the name for its documents; those of a ``.jsonl`` file become ``name:line``, those of a FASTA
            file ``name:record``.
        max_bytes: of text that the file may hold.

    Raises:
        ValueError: a line of a ``.jsonl`` file is not an object with a string field "text"; a FASTA file
            does not begin with a header; more text than `max_bytes`, or than `MAX_RATIO` allows.
        ImportError: a ``.zst`` file, and `zstandard` is not installed.
    """
    extension, compression = _kind(path)
    chunks = _limited(_read(path, compression, name), path, bool(compression), max_bytes)
    try:
        if extension in FASTA_EXTENSIONS:
            return parse_fasta(chunks, name)
        # Decoding bytes, rather than reading in text mode, keeps "\r\n" and lone "\r" as they are.
        text = b"".join(chunks).decode("utf-8")
    except _Unusable as error:
        return [], [Skipped(name, str(error))]
    except UnicodeDecodeError:
        return [], [Skipped(name, "not UTF-8")]
    if not text:
        return [], [Skipped(name, "empty")]
    return _parse_lines(text, name) if extension == JSONL_EXTENSION else ([Document(name, text)], [])


def import_optional(module: str, argument: str, value: str) -> ModuleType:
    """Import a package of the ``data`` extra, or raise an ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        expected = f"the package {module!r} to be installed; it comes with: pip install 'based-jax[data]'"
        raise ImportError(f"{argument} = {value!r}: expected {expected}") from error


def _kind(path: Path) -> tuple[str, str]:
    """The extension of the text and that of the compression ("" for none), in lower case."""
    name = path.name.lower()
    text = without_compression(name)
    return os.path.splitext(text)[1], name[len(text) :]


def _read(path: Path, compression: str, name: str) -> Iterator[bytes]:
    """The text's bytes in chunks; raises `_Unusable` for a file that is unreadable, damaged or binary."""
    try:
        with path.open("rb") as file:
            decompress = {".gz": _read_gzip, ".zst": _read_zstd}.get(compression, _read_plain)
            for chunk in decompress(file, name):
                if b"\0" in chunk:
                    raise _Unusable("binary")
                yield chunk
    except (EOFError, zlib.error) as error:
        raise _Unusable("damaged") from error
    except OSError as error:
        raise _Unusable("unreadable") from error


def _limited(chunks: Iterator[bytes], path: Path, compressed: bool, max_bytes: int) -> Iterator[bytes]:
    """The chunks, up to the limits on a file's text."""
    limit, size = max_bytes, 0
    with contextlib.suppress(OSError):  # reading it reports why
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
        raise ValueError(f"{path}: {total} or more bytes of text, expected at most {limit} ({advice})")


def _read_plain(file: BinaryIO, name: str) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _read_gzip(file: BinaryIO, name: str) -> Iterator[bytes]:
    """All members of a gzip file, and none of the zeros after them (`gzip` reads those singly)."""
    member, is_first = None, True
    while chunk := file.read(_GZIP_STEP):
        while chunk := chunk if member or is_first else chunk.lstrip(b"\0"):
            member, is_first = member or zlib.decompressobj(wbits=31), False
            yield member.decompress(chunk, _CHUNK)
            while member.unconsumed_tail and not member.eof:  # after its end a member keeps its last tail
                yield member.decompress(member.unconsumed_tail, _CHUNK)
            if not member.eof:
                break
            chunk, member = member.unused_data, None
        if member is None:
            _skip_zeros(file)
    if member is not None:
        raise EOFError("the last gzip member has no end")


def _skip_zeros(file: BinaryIO) -> None:
    """Move to the next byte that is not zero, or to the end."""
    while chunk := file.read(_CHUNK):
        if chunk != bytes(len(chunk)):
            file.seek(-len(chunk.lstrip(b"\0")), os.SEEK_CUR)
            return


def _read_zstd(file: BinaryIO, name: str) -> Iterator[bytes]:
    """All frames of a zstd file; EOFError if the last one is cut short, which a stream reader would hide."""
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
    # Only "\n" ends a line: str.splitlines would also cut at U+2028, which is legal inside a JSON string.
    lines = ((number, line) for number, line in _lines(text.removeprefix("\ufeff")) if line.strip())
    found = [Document(f"{name}:{number}", _parse_line(line, name, number)) for number, line in lines]
    empty = [Skipped(document.name, "empty") for document in found if not document.text]
    return [document for document in found if document.text], empty if found else [Skipped(name, "empty")]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and lines, without the empty ones: a list of all lines may take ten times the text."""
    number, end = 1, 0
    for line in _LINE.finditer(text):
        number += text.count("\n", end, line.start())
        end = line.end()
        yield number, line[0]


def _parse_line(line: str, name: str, number: int) -> str:
    expected = f"{name}, line {number}: expected a JSON object with a string field 'text'"
    try:
        record = parse_json(line, "line")
    except ValueError as error:
        raise ValueError(f"{expected}, but this is not JSON ({error})") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{expected}, but there is none")
    try:
        text.encode("utf-8")  # half of an escaped surrogate pair passes the parser but is not text
    except UnicodeEncodeError as error:
        raise ValueError(f"{expected}, but its text is not valid Unicode ({error.reason})") from error
    return text
