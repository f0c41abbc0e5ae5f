"""One file -> its documents: plain text, JSON lines or FASTA by its extension, each perhaps compressed.

A damaged file costs itself, never the corpus: it is returned as `Skipped`. A broken line of JSON, or a FASTA
file that does not begin with a header, is different: the file is not what its name promises, so it is an
error that names the line.
"""

import gzip
import importlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from based_jax.data.documents import Document, Skipped
from based_jax.data.fasta import parse_fasta

TEXT_EXTENSIONS = (".txt", ".py", ".md")
JSONL_EXTENSION = ".jsonl"
FASTA_EXTENSIONS = (".fa", ".fasta", ".fna")
COMPRESSIONS = (".gz", ".zst")
_EXTENSIONS = (*TEXT_EXTENSIONS, JSONL_EXTENSION, *FASTA_EXTENSIONS)
KNOWN_FILES = f"{' '.join(_EXTENSIONS)}, each also with {' or '.join(COMPRESSIONS)}"

_CHUNK = 1 << 20  # bytes


class _Unusable(Exception):
    """A file without text; the argument is the reason."""


def is_known_file(path: Path) -> bool:
    """Whether the name's extension promises text."""
    return _kind(path)[0] in _EXTENSIONS


def without_compression(name: str) -> str:
    """A file's name without the ending of its compression."""
    return next((name[: -len(end)] for end in COMPRESSIONS if name.lower().endswith(end)), name)


def read_file(path: Path, name: str) -> tuple[list[Document], list[Skipped]]:
    """Read one file.

    Args:
        path: a file; one whose extension is unknown is read as UTF-8 text.
        name: the name for its documents; those of a ``.jsonl`` file become ``name:line``, those of a FASTA
            file ``name:record``.

    Returns:
        the documents, none of them with an empty text, and what was skipped.

    Raises:
        ValueError: a line of a ``.jsonl`` file is not an object with a string field "text"; a FASTA file
            does not begin with a header.
        ImportError: a ``.zst`` file, and `zstandard` is not installed.
    """
    extension, compression = _kind(path)
    chunks = _read(path, compression, name)
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
        raise ImportError(
            f"{argument} = {value!r}: expected the package {module!r} to be installed; "
            "it comes with: pip install 'based-jax[data]'"
        ) from error


def _kind(path: Path) -> tuple[str, str]:
    """The extension of the text and that of the compression ("" for none), in lower case."""
    name = path.name.lower()
    text = without_compression(name)
    return os.path.splitext(text)[1], name[len(text) :]


def _read(path: Path, compression: str, name: str) -> Iterator[bytes]:
    """The text's bytes in chunks.

    Raises:
        _Unusable: the file is unreadable, damaged or binary.
    """
    try:
        with path.open("rb") as file:
            decompress = {".gz": _read_gzip, ".zst": _read_zstd}.get(compression, _read_plain)
            for chunk in decompress(file, name):
                if b"\0" in chunk:
                    raise _Unusable("binary")
                yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _Unusable("damaged") from error
    except OSError as error:
        raise _Unusable("unreadable") from error


def _read_plain(file: BinaryIO | gzip.GzipFile, name: str) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _read_gzip(file: BinaryIO, name: str) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as text:
        yield from _read_plain(text, name)


def _read_zstd(file: BinaryIO, name: str) -> Iterator[bytes]:
    """All frames of a zstd file; EOFError if the last one is cut short, which a stream reader would hide."""
    zstandard = import_optional("zstandard", "file", name)
    frame = None
    for chunk in _read_plain(file, name):
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
    documents, skipped = [], []
    # Only "\n" ends a line: str.splitlines would also cut at U+2028, which is legal inside a JSON string.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        document = Document(f"{name}:{number}", _parse_line(line, name, number))
        if document.text:
            documents.append(document)
        else:
            skipped.append(Skipped(document.name, "empty"))
    if not documents and not skipped:
        skipped.append(Skipped(name, "empty"))
    return documents, skipped


def _parse_line(line: str, name: str, number: int) -> str:
    expected = f"{name}, line {number}: expected a JSON object with a string field 'text'"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{expected}, but this is not JSON ({error})") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{expected}, but there is none")
    try:
        text.encode("utf-8")  # half of an escaped surrogate pair passes the parser but is not text
    except UnicodeEncodeError as error:
        raise ValueError(f"{expected}, but its text is not valid Unicode ({error.reason})") from error
    return text
