"""Read the bytes of a file's text: plain or compressed, in chunks, in any encoding.

The text of a compressed file is limited to `MAX_RATIO` times its own size, which ordinary text does not reach
and a decompression bomb does.
"""

import codecs
import contextlib
import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from based_jax.data.documents import Unusable
from based_jax.imports import import_optional
from based_jax.validate import expect

UTF_8 = "utf-8"

JSONL_EXTENSION = ".jsonl"
FASTA_EXTENSIONS = (".fa", ".fasta", ".fna")
COMPRESSIONS = (".gz", ".zst")
EXTENSIONS = (".txt", ".py", ".md", JSONL_EXTENSION, *FASTA_EXTENSIONS)
KNOWN_FILES = f"{' '.join(EXTENSIONS)}, each also with {' or '.join(COMPRESSIONS)}; .parquet as hf:DIR"

BYTE_ORDER_MARK = codecs.BOM_UTF8  # at the beginning of a file, not part of its text
MAX_BYTES = 16 << 30  # default limit of the text in one file; an argument of `load_documents`
MAX_RATIO = 100  # maximum bytes of text per byte of a compressed file, beyond the first 64 MiB

_MIN_LIMIT = 64 << 20
_CHUNK = 1 << 20  # bytes
_ZSTD_STEP = 1 << 11  # bytes that zstd unpacks at once: every four of them may become 128 KiB


@dataclass(frozen=True)
class ReadOptions:
    """How files are read."""

    text_field: str = "text"
    """field of JSON records and rows (hf:) that is the text; dots lead into nested records: body.content"""
    encoding: str = UTF_8
    """encoding of text files: utf-8, latin-1, ...; files in another are skipped and reported"""

    def __post_init__(self) -> None:
        expect(all(self.text_field.split(".")), "text_field", self.text_field, "names joined by dots")
        expected = f"an encoding that Python knows, such as {UTF_8} or latin-1"
        expect(_is_encoding(self.encoding), "encoding", self.encoding, expected)

    @property
    def codec(self) -> str:
        """Return the canonical name of the encoding."""
        return codecs.lookup(self.encoding).name


def without_compression(name: str) -> str:
    """Return a file's name without its compression extension."""
    return next((name[: -len(end)] for end in COMPRESSIONS if name.lower().endswith(end)), name)


def kind_of(path: Path) -> tuple[str, str]:
    """Return the extension of the text and that of the compression ("" for none), in lower case."""
    name = path.name.lower()
    text = without_compression(name)
    return os.path.splitext(text)[1], name[len(text) :]


def read_chunks(
    path: Path,
    name: str,
    max_bytes: int | None,
    *,
    encoding: str,
    report: Callable[[int], None],
    offset: int = 0,
    binary: bool = False,
) -> Iterator[bytes]:
    """Yield a file's decompressed text in chunks of bytes.

    Args:
        max_bytes: limit of the text; None for no limit except `MAX_RATIO`.
        offset: bytes of the result to skip at the beginning.
        binary: whether zero bytes are allowed, and a byte order mark at the beginning is kept.
        encoding: that of the file; the result is in UTF-8. UTF-8 itself is not checked.
        report: called before each chunk with the number of the file's own bytes read so far.

    Raises:
        Unusable: the file is unreadable, damaged, too large, in another encoding or binary.
        ImportError: the package for a ``.zst`` file is not installed.
    """
    compression = kind_of(path)[1]
    seeks = not compression and encoding == UTF_8
    chunks = _limited(
        _read(path, compression, name, offset if seeks else 0, report), path, bool(compression), max_bytes
    )
    if encoding != UTF_8:
        chunks = _transcoded(chunks, encoding)
    skip = 0 if seeks else offset
    for chunk in chunks if binary else _without_mark(chunks):
        if not binary and b"\0" in chunk:
            raise Unusable("binary")
        if skip < len(chunk):
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def _transcoded(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield a text as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode(errors="surrogatepass")
        yield decoder.decode(b"", final=True).encode(errors="surrogatepass")
    except UnicodeError as error:  # itself for utf-16 without its mark, before Python 3.13
        raise Unusable(not_in(encoding)) from error


def _read(
    path: Path, compression: str, name: str, offset: int, report: Callable[[int], None]
) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            decompress = {".gz": _read_gzip, ".zst": _read_zstd}.get(compression, _read_plain)
            for chunk in decompress(file, name):
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
    """Yield the chunks; raise `Unusable` beyond the limits on a file's text."""
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
        message = f"{path}: {total} or more bytes of text, expected at most {limit} ({advice})"
        raise Unusable("too large", message)


def _read_plain(file: BinaryIO, name: str) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _read_gzip(file: BinaryIO, name: str) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        while chunk := unpacked.read1(_CHUNK):  # `read` loses what it has when it meets damage
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
                if "too much memory" in str(error):  # of a window beyond 128 MiB (zstd --long=28)
                    raise Unusable("too large", f"{file.name}: {error}") from error
                raise EOFError(str(error)) from error
            if not frame.eof:
                break
            chunk, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("the last zstd frame has no end")


def not_in(encoding: str) -> str:
    """Return the reason to skip a text that has bytes which are not in this encoding."""
    return f"not {encoding.upper() if encoding == UTF_8 else encoding}"


def _is_encoding(name: str) -> bool:
    try:
        return bool("a".encode(name)) and codecs.getincrementaldecoder(name) is not None
    except (LookupError, UnicodeError, ValueError):
        return False
