"""Read FASTA: records of sequence, split at assembly gaps.

    >chr1 description          the record's name is the first word; the rest is ignored
    ACGTNNNNACGT               lines of any length
    ; a comment                in old files; ignored

Reading keeps one copy of the sequences in memory, briefly three of one record, and none of the file. Letters
and their case are kept: the tokenizer interprets them.
"""

import re
import sys
from collections.abc import Iterable, Iterator

from based_jax.data.documents import Document, Skipped
from based_jax.validate import expect

GAP = 100
"""Length of a run of N that counts as an assembly gap rather than as unreadable bases: a gap of unknown
length is 100 N (NCBI's AGP specification, type U)."""

MAX_HEADER = 16 << 20  # bytes of the longest line that is not sequence
_MARKED = re.compile(rb"\n([>;])([^\n]*)")
_NOT_N = re.compile(rb"[^N]")
_SPACE = b" \t\r\n\v\f"


def read_sequences(
    chunks: Iterable[bytes], name: str, max_record: int = sys.maxsize
) -> Iterator[Document | Skipped]:
    """Yield the sequences of nonempty records, and the skipped records, while reading.

    `name` is that of the file. Records without a base are skipped, and so are those of more than `max_record`
    letters, which are not kept in memory.

    A record is cut at every run of at least `GAP` N, since its bases are unknown and no model should learn
    them. The resulting sequences are named ``NAME:RECORD:START-END``, counted from 1 with both ends included,
    as in ``samtools faidx``; a record without a gap is ``NAME:RECORD``. An unnamed record is named by its
    number.

    Raises:
        ValueError: text before the first header, or a header of more than `MAX_HEADER` bytes.
        UnicodeDecodeError: a name or a sequence that is not UTF-8 text.
    """
    number = 0
    for number, (header, sequence) in enumerate(_records(chunks, name, max_record), start=1):
        words = header.decode("utf-8").split()
        record = f"{name}:{words[0] if words else number}"
        if sequence is None:
            yield Skipped(record, "too large")
            continue
        is_empty = True
        for start, part in _between_gaps(sequence):
            if part:
                is_empty, end = False, start + len(part)
                own_name = record if part is sequence else f"{record}:{start + 1}-{end}"
                yield Document(own_name, part.decode("utf-8"))
        if is_empty:
            yield Skipped(record, "empty")
    if not number:
        yield Skipped(name, "empty")


def _between_gaps(sequence: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the start and the letters of each part between gaps; the whole sequence if it has no gap."""
    letters, start = sequence.upper(), 0
    while (gap := letters.find(b"N" * GAP, start)) >= 0:  # much faster than a regular expression
        yield start, sequence[start:gap]
        known = _NOT_N.search(letters, gap)
        start = known.start() if known else len(letters)
    del letters
    yield start, sequence[start:] if start else sequence


def _records(chunks: Iterable[bytes], name: str, max_record: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield each record's header without ">" and its sequence without white space, None if too large."""
    header: bytes | None = None
    parts, size = list[bytes](), 0

    def sequence() -> bytes | None:
        joined = b"".join(parts)
        parts.clear()  # free memory: the caller holds the sequence while it encodes it
        return joined if size <= max_record else None

    for kind, text in _marked(chunks, name):
        if kind == b">":
            if header is not None:
                yield header, sequence()
            header, parts, size = text, [], 0
        elif kind == b"" and (part := text.translate(None, delete=_SPACE)):
            shown = part[:40].decode(errors="replace")
            expect(header is not None, f"{name}, first line", shown, "'>' and a name")
            size += len(part)
            if size <= max_record:
                parts.append(part)
            else:
                parts.clear()
    if header is not None:
        yield header, sequence()


def _marked(chunks: Iterable[bytes], name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the text in order with its kind: ">" or ";" for lines that begin so, "" for the text between."""
    carry = b"\n"  # so that the first line also follows a newline
    for chunk in chunks:
        data = carry + chunk
        # A header may continue in the next chunk, and a newline at the end may precede a header.
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
