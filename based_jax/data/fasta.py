"""FASTA: records of sequence, and the stretches of a record between its assembly gaps.

    >chr1 description          the record's name is the first word; what follows is for people
    ACGTNNNNACGT               lines of any length
    ; a comment                lines of the oldest files, left out

Reading keeps one copy of the sequences, for a while three of one record, and none of the file. Letters and
their case stay as they are: what they mean is up to the tokenizer.
"""

import re
import sys
from collections.abc import Iterable, Iterator

from based_jax.data.documents import Document, Skipped
from based_jax.validate import expect

GAP = 100
"""N in a row that are a gap of the assembly, not bases that were hard to read: a gap whose length is not
known is 100 N (NCBI's AGP specification, type U)."""

MAX_HEADER = 16 << 20  # bytes of the longest line that is not sequence
_MARKED = re.compile(rb"\n([>;])([^\n]*)")
_NOT_N = re.compile(rb"[^N]")
_SPACE = b" \t\r\n\v\f"


def parse_fasta(chunks: Iterable[bytes], name: str) -> tuple[list[Document], list[Skipped]]:
    """Return the documents and the skipped records that `read_fasta` yields, with its errors."""
    found = list(read_fasta(chunks, name))
    documents = [item for item in found if isinstance(item, Document)]
    return documents, [item for item in found if isinstance(item, Skipped)]


def read_fasta(chunks: Iterable[bytes], name: str) -> Iterator[Document | Skipped]:
    """Yield what `read_sequences` does, as documents.

    Raises:
        ValueError: as `read_sequences`.
        UnicodeDecodeError: a sequence or a name that is not ASCII or UTF-8 text.
    """
    for item in read_sequences(chunks, name):
        yield item if isinstance(item, Skipped) else Document(item[0], item[1].decode("utf-8"))


def read_sequences(
    chunks: Iterable[bytes], name: str, max_record: int = sys.maxsize
) -> Iterator[tuple[str, bytes] | Skipped]:
    """Yield names and letters of records, none of them empty, and what is skipped, as they are read.

    `name` is that of the file. Skipped are records without a base, and those of more than `max_record`
    letters, of which no more are kept in memory.

    A record is cut at every run of at least `GAP` N: nobody knows what is there, and no model should learn
    it. Its pieces are ``NAME:RECORD:START-END``, from base START to base END, both counted from 1 and
    included, as in ``samtools faidx``; a record without a gap is ``NAME:RECORD``. One without a name takes
    its number.
    Raises:
        ValueError: text before the first header, or a header of more than `MAX_HEADER` bytes.
        UnicodeDecodeError: a name that is not ASCII or UTF-8 text.
    """
    number = 0
    for number, (header, sequence) in enumerate(_records(chunks, name, max_record), start=1):
        words = header.decode("utf-8").split()
        record = f"{name}:{words[0] if words else number}"
        if sequence is None:
            yield Skipped(record, "too large")
            continue
        is_empty = True
        for start, piece in _between_gaps(sequence):
            if piece:
                is_empty, end = False, start + len(piece)
                yield record if piece is sequence else f"{record}:{start + 1}-{end}", piece
        if is_empty:
            yield Skipped(record, "empty")
    if not number:
        yield Skipped(name, "empty")


def _between_gaps(sequence: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each stretch without a gap starts, and the stretch; the sequence itself if there is no gap."""
    letters, start = sequence.upper(), 0
    while (gap := letters.find(b"N" * GAP, start)) >= 0:  # a search for bytes is much faster than a pattern
        yield start, sequence[start:gap]
        known = _NOT_N.search(letters, gap)
        start = known.start() if known else len(letters)
    del letters
    yield start, sequence[start:] if start else sequence


def _records(chunks: Iterable[bytes], name: str, max_record: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Header without ">" and sequence without white space, None where it is too large, record by record."""
    header: bytes | None = None
    pieces, size = list[bytes](), 0

    def sequence() -> bytes | None:
        joined = b"".join(pieces)
        pieces.clear()  # the caller has the sequence for as long as it takes to encode it
        return joined if size <= max_record else None

    for kind, text in _marked(chunks, name):
        if kind == b">":
            if header is not None:
                yield header, sequence()
            header, pieces, size = text, [], 0
        elif kind == b"" and (piece := text.translate(None, delete=_SPACE)):
            shown = piece[:40].decode(errors="replace")
            expect(header is not None, f"{name}, first line", shown, "'>' and a name")
            size += len(piece)
            if size <= max_record:
                pieces.append(piece)
            else:
                pieces.clear()
    if header is not None:
        yield header, sequence()


def _marked(chunks: Iterable[bytes], name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the text in order: lines after ">" or ";", and what stands between them (kind "")."""
    carry = b"\n"  # a line begins after a newline, the first one too
    for chunk in chunks:
        data = carry + chunk
        # A header may go on in the next chunk, and a newline at the end may turn out to be before one.
        cut = data.rfind(b"\n")
        if cut >= 0 and data[cut + 1 : cut + 2] in (b"", b">", b";"):
            data, carry = data[:cut], data[cut:]
            size = len(carry)
            expect(size <= MAX_HEADER, f"{name}, a header", f"{size} bytes", f"at most {MAX_HEADER}")
        else:
            carry = b""
        yield from _split(data)
    yield from _split(carry)


def _split(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    for line in _MARKED.finditer(data):
        yield b"", data[position : line.start()]
        yield line[1], line[2]
        position = line.end()
    yield b"", data[position:]
