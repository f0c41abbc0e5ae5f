"""Options of reading text, and the encodings of text files."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from based_jax.data.optional import import_optional
from based_jax.validate import expect

UTF_8, AUTO = "utf-8", "auto"
_SAMPLE = 1 << 16  # bytes from which an encoding is detected
_WESTERN = "cp1252"  # of Windows, which has the characters of latin-1
# Encodings of the web; with those of DOS and old Macs among them, short texts are taken for these.
_CANDIDATES = (
    *(_WESTERN, "latin_1", "iso8859_2", "iso8859_15", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255"),
    *("cp1256", "cp1257", "koi8_r", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
_MARKS = {  # UTF-32 first: the mark of UTF-16 is the beginning of its own
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True)
class ReadOptions:
    """How files are read."""

    text_field: str = "text"
    """field of JSON records and rows (hf:) that is the text; dots lead into nested records: body.content"""
    encoding: str = UTF_8
    """encoding of text files: utf-8, latin-1, ...; files in another are skipped and reported;
    auto: UTF-8 where it is valid, else detected file by file"""

    def __post_init__(self) -> None:
        expect(all(self.text_field.split(".")), "text_field", self.text_field, "names joined by dots")
        expected = f"{AUTO} or an encoding that Python knows, such as {UTF_8} or latin-1"
        expect(self.encoding == AUTO or _is_encoding(self.encoding), "encoding", self.encoding, expected)

    @property
    def codec(self) -> str:
        """Return the canonical name of the encoding, or "auto"."""
        return AUTO if self.encoding == AUTO else codecs.lookup(self.encoding).name


def not_in(encoding: str) -> str:
    """Return the reason to skip a text that has bytes which are not in this encoding."""
    return f"not {encoding.upper() if encoding == UTF_8 else encoding}"


def detect(chunks: Iterable[bytes]) -> str | None:
    """Return the encoding of a text that comes in chunks: UTF-8 if all of it is valid, else a guess.

    None: the bytes are no text in a known encoding.

    Raises:
        ImportError: the text is not UTF-8 and the package `charset_normalizer` is not installed.
    """
    decoder, is_first = codecs.getincrementaldecoder(UTF_8)(), True
    try:
        for chunk in chunks:
            marks = (name for mark, name in _MARKS.items() if is_first and chunk.startswith(mark))
            if (marked := next(marks, None)) is not None:
                return marked
            is_first = False
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return _guess(_sample(error.object, error.start))
    return UTF_8


def transcode(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield a text as UTF-8; UnicodeDecodeError for bytes that are not in the encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    for chunk in chunks:
        yield decoder.decode(chunk).encode(errors="surrogatepass")
    yield decoder.decode(b"", final=True).encode(errors="surrogatepass")


def _is_encoding(name: str) -> bool:
    try:
        return bool("a".encode(name)) and codecs.getincrementaldecoder(name) is not None
    except (LookupError, UnicodeError, ValueError):
        return False


def _sample(data: bytes, position: int) -> bytes:
    """Return whole lines around a position, since half a character would rule its encoding out."""
    begin = 0 if position < _SAMPLE // 2 else data.rfind(b"\n", 0, position) + 1
    end = begin + _SAMPLE
    return data[begin : (data.rfind(b"\n", position, end) + 1 or end) if end < len(data) else end]


def _guess(sample: bytes) -> str | None:
    """Return the most plausible encoding; the Western one unless another makes more sense as a language."""
    library = import_optional("charset_normalizer", "encoding", AUTO, "text")
    matches = library.from_bytes(sample, cp_isolation=list(_CANDIDATES))
    if b"\0" in sample or not matches:
        return None
    best = matches.best()
    western = (match for match in matches if _WESTERN in match.could_be_from_charset)
    is_western = any(match.coherence >= best.coherence for match in western)
    return _WESTERN if is_western else codecs.lookup(best.encoding).name
