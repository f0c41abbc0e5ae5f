"""Decode and parse parts of files: what the threads do that encode a block."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from based_jax.data import records
from based_jax.data.documents import Document, Skipped, Unusable
from based_jax.data.encodings import UTF_8, not_in
from based_jax.data.optional import import_optional
from based_jax.data.readers import BYTE_ORDER_MARK

MAX_LINE = 256 << 20  # bytes of a line of JSON; longer ones are skipped


class Part(NamedTuple):
    """Documents of one file in one format."""

    kind: str  # "texts": UTF-8 text; "html"; "lines" of JSON
    name: str  # of the file, or of the document if `number` is None
    number: int | None  # of the first document, or line
    sizes: list[int]  # bytes of each document; for "lines" of all together
    data: bytes
    encoding: str | None = None  # of the file, if its text has one


def texts_part(name: str, first: int, texts: Iterable[str]) -> Part:
    """Return the part of texts that were parsed already."""
    encoded = [text.encode("utf-8", errors="surrogatepass") for text in texts]
    return Part("texts", name, first, [len(text) for text in encoded], b"".join(encoded))


def documents_of(part: Part, field: str) -> Iterator[Document | Skipped]:
    """Yield a part's documents, and why the others have no text; `field` is that of the text."""
    if part.kind == "lines":
        yield from _lines(part, field)
        return
    begin, data = 0, memoryview(part.data)
    for i, size in enumerate(part.sizes):
        name = part.name if part.number is None else f"{part.name}:{part.number + i}"
        content, begin = data[begin : begin + size], begin + size
        yield _document(name, content, is_html=part.kind == "html")


def _lines(part: Part, field: str) -> Iterator[Document | Skipped]:
    assert part.number is not None
    data = part.data.removeprefix(BYTE_ORDER_MARK) if part.number == 1 else part.data
    # Only "\n" ends a line: str.splitlines would also split at U+2028, which is legal inside a JSON string.
    for number, line in enumerate(data.split(b"\n"), start=part.number):
        if not line.strip():
            continue
        name = f"{part.name}:{number}"
        if len(line) > MAX_LINE:
            yield too_long(part.name, number)
            continue
        found = _document(name, line)
        if isinstance(found, Document):
            try:
                found = _document_of(name, records.parse_line(found.text, field, part.name, number))
            except Unusable as error:
                found = error.skipped(name)
        yield found


def too_long(name: str, number: int) -> Skipped:
    """Report a line of JSON that is too long."""
    message = f"{name}, line {number}: expected at most {MAX_LINE} bytes"
    return Skipped(f"{name}:{number}", "too large", message)


def _document(name: str, content: memoryview | bytes, *, is_html: bool = False) -> Document | Skipped:
    try:
        text = str(content, UTF_8)
    except UnicodeDecodeError:
        return Skipped(name, not_in(UTF_8))
    return _document_of(name, _text_of_html(text, name) if is_html else text)


def _document_of(name: str, text: str) -> Document | Skipped:
    return Document(name, text) if text else Skipped(name, "empty")


def _text_of_html(content: str, name: str) -> str:
    """Return the text that a browser without style sheets shows: no markup, scripts, styles or comments."""
    library = import_optional("inscriptis", "file", name, "text")
    return library.get_text(content).strip()
