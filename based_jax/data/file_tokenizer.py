"""A tokenizer of the `tokenizers` library, in which text stays text and every token has its exact bytes."""

import contextlib
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from jaxtyping import Int32
from numpy.typing import ArrayLike
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from based_jax.validate import expect

EOT_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Names of the document separator in tokenizer files. The first that the file marks as special is used, else
the first that exists: Gemma's has the tag </s> of HTML beside the special token <eos>."""

BREAK = "\ufdd0"
"""A noncharacter that `encode_special` drops: a special token's name with it inside is plain text."""

FILE = "tokenizer.json"
REPLACEMENT = "\ufffd"
"""Stands for a byte that is not part of a character."""

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")  # name of a byte token
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_OF_LETTER = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + index): byte for index, byte in enumerate(_OTHERS)
}  # how byte-level vocabularies write bytes, see `pre_tokenizers.ByteLevel`


class FileTokenizer:
    """A tokenizer of the `tokenizers` library, from the JSON text that the library saves.

    Truncation, padding, BPE dropout and special tokens in the file's settings are disabled: documents are
    encoded whole, and each text in one way. The name of a special token inside a text is plain text.

    Args:
        special: names of further special tokens; those that are not in the vocabulary are ignored.

    Raises:
        ValueError: the JSON is not a tokenizer, or none of `EOT_NAMES` is in the vocabulary.
    """

    def __init__(self, content: str, name: str = "tokenizer", special: Iterable[str] = ()) -> None:
        self._content, self.name = content, name
        self._tokenizer = _read(content, name)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder().values()
        marked = [token.content for token in added if token.special]
        eot = next((token for among in (marked, vocabulary) for token in EOT_NAMES if token in among), None)
        if eot is None:
            names = ", ".join(EOT_NAMES)
            raise ValueError(f"tokenizer = {name!r}: expected a document separator, one of {names}")
        if isinstance(self._tokenizer.model, models.BPE) and self._tokenizer.model.unk_token == eot:
            self._tokenizer.model.unk_token = None  # an unknown character is no separator
        self.eot: int = vocabulary[eot]
        text = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).encode("a")
        processor = self._tokenizer.post_processor
        text = text if processor is None else processor.process(text)
        self.puts_start: bool = text.special_tokens_mask[:1] == [1]
        """whether the file's post-processor puts a token before a text, such as <s>"""
        self.start: int = text.ids[0] if self.puts_start else self.eot
        """this token, or else the separator"""
        self.vocab_size: int = max(vocabulary.values()) + 1  # ids may have gaps
        self.stop_tokens: tuple[int, ...] = (self.eot,)
        """tokens that end a generated text"""
        self.chat_files: Mapping[str, bytes] = {}
        """name -> content of the `CHAT_FILES` next to its own file"""
        self.added_tokens: Collection[str] = frozenset(token.content for token in added)
        """names of all tokens that are outside of the model, special or not"""
        names = {*filter(None, marked)}
        self._given = {name for name in special if name in vocabulary and len(name) > 1} - names
        names |= {eot, *self._given}
        self.special_tokens: Mapping[str, int] = {name: vocabulary[name] for name in names}
        """name -> id of tokens that no name in a text becomes, and that `decode` ignores"""
        _make_special(self._tokenizer, names)
        _split_names(self._tokenizer, self.special_tokens)
        self._tokenizer.encode_special_tokens = True
        decoder = b"" if self._tokenizer.decoder is None else self._tokenizer.decoder.__getstate__()
        self._is_byte_level = b'"ByteLevel"' in decoder
        found = ((_BYTE.fullmatch(token), number) for token, number in vocabulary.items())
        found = found if b'"ByteFallback"' in decoder else ()
        self.byte_tokens = {number: int(match[1], 16) for match, number in found if match}
        """id -> byte of the tokens by which a vocabulary of characters spells others"""

    def with_special(self, names: Iterable[str]) -> "FileTokenizer":
        """Return this tokenizer, or a copy with further special tokens; see the argument `special`."""
        known = {name for name in names if self._tokenizer.token_to_id(name) is not None and len(name) > 1}
        missing = known - self.special_tokens.keys()
        return FileTokenizer(self._content, self.name, known | {*self.special_tokens}) if missing else self

    @functools.cached_property
    def _reading_specials(self) -> tokenizers.Tokenizer:
        """Return a copy for conversations, since other threads may use the original at the same time."""
        copy = _read(self._content, self.name)
        _make_special(copy, self.special_tokens)
        _split_names(copy, self.special_tokens)
        own = () if copy.normalizer is None else (copy.normalizer,)
        copy.normalizer = normalizers.Sequence([normalizers.Replace(BREAK, ""), *own])
        return copy

    def encode_special(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as int32 (N,), with the names of special tokens that contain no `BREAK` as tokens."""
        return _encode(self._reading_specials, text)

    def encode(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as int32 (N,).

        Raises ValueError if the model has no token for a part of it, and none for the unknown, and
        UnicodeEncodeError for lone surrogates.
        """
        return _encode(self._tokenizer, text)

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " N"]]:
        """Encode several texts, faster than one by one; texts must have no lone surrogates.

        Raises ValueError if the model refuses one of them, see `encode`.
        """
        with _refusing():
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        # Half of the time of `np.asarray`.
        return [np.fromiter(ids := encoding.ids, np.int32, len(ids)) for encoding in encodings]

    def decode(self, ids: ArrayLike) -> str:
        """Decode `ids`, integers (N,); ignore the separator, special tokens and unknown ids."""
        numbers = as_ids(ids).tolist()
        if not self.byte_tokens.keys().isdisjoint(numbers):
            entries = list(self._entries(numbers))
            if REPLACEMENT in entries:  # the library would replace whole runs of bytes, valid ones too
                return self._tokenizer.decoder.decode(entries)
        return self._tokenizer.decode(numbers, skip_special_tokens=True)

    def _entries(self, numbers: Iterable[int]) -> Iterator[str]:
        """Yield the entries that the library decodes, a byte that is in no character as REPLACEMENT."""
        special = {*self.special_tokens.values()}
        shown = (n for n in numbers if n not in special and self._tokenizer.id_to_token(n) is not None)
        for is_byte, group in itertools.groupby(shown, self.byte_tokens.__contains__):
            if not is_byte:
                yield from filter(None, map(self._tokenizer.id_to_token, group))
                continue
            for letter in bytes(map(self.byte_tokens.__getitem__, group)).decode("utf-8", "surrogateescape"):
                is_stray = "\udc80" <= letter <= "\udcff"
                yield from [REPLACEMENT] if is_stray else map("<0x{:02X}>".format, letter.encode())

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text in UTF-8; none for special tokens and unknown ids."""
        entry = self.token_entry(token)
        if entry is None or entry in self.special_tokens:
            return b""
        if token in self.byte_tokens:
            return bytes([self.byte_tokens[token]])
        if self._is_byte_level:
            known = all(letter in _BYTE_OF_LETTER for letter in entry)
            return bytes(map(_BYTE_OF_LETTER.__getitem__, entry)) if known else entry.encode()
        word, size = self._word  # decoders treat the first token of a text differently
        return self.decode([word, token])[size:].encode()

    def token_entry(self, token: int) -> str | None:
        """Return a token's name in the vocabulary; None for unknown ids."""
        return self._tokenizer.id_to_token(int(token))

    def has_entry(self, name: str) -> bool:
        """Return whether a token has this name in the vocabulary."""
        return self._tokenizer.token_to_id(name) is not None

    @functools.cached_property
    def _word(self) -> tuple[int, int]:
        """Return a token with a text of its own, and the length of that text."""
        tokens = itertools.chain(self.encode("a").tolist(), range(self.vocab_size))
        sizes = ((token, len(self.decode([token]).strip(REPLACEMENT))) for token in tokens)
        return next((found for found in sizes if found[1]), (self.eot, 0))

    def save(self, directory: str | Path) -> None:
        """Write ``tokenizer.json`` in the library's own format."""
        saved = _read(self._content, self.name)
        _make_special(saved, self._given)
        write(directory, saved.to_str())

    def save_prepared(self, directory: str | Path) -> None:
        """Write ``tokenizer.json`` with what this class changed, for programs that use only the library."""
        write(directory, self._tokenizer.to_str())


def _read(content: str, name: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"tokenizer = {name!r}: expected a file of `tokenizers` ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None  # a random encoding, for training of the tokenizer's own authors
    return tokenizer


def _make_special(tokenizer: tokenizers.Tokenizer, names: Iterable[str]) -> None:
    """Make tokens special and look for their names in a text as given, because normalization drops BREAK."""
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    flags = ("lstrip", "rstrip", "single_word")
    made = []
    for name in names:
        own = {flag: getattr(added[name], flag) for flag in flags} if name in added else {}
        made.append(tokenizers.AddedToken(name, special=True, normalized=False, **own))
    tokenizer.add_special_tokens(made)


def _split_names(tokenizer: tokenizers.Tokenizer, names: Mapping[str, int]) -> None:
    """Split these names after their first character, where the model would read one as its token."""
    starts: dict[str, str] = {}
    for name, number in sorted(names.items()):
        if len(name) > 1 and _reads_as(tokenizer.model, name, number):
            starts[name[0]] = f"{starts.get(name[0], '')}|{re.escape(name[1:])}"
    byte = tokenizer.token_to_id("<0x41>")
    if byte is not None and _reads_as(tokenizer.model, "<0x41>", byte):
        starts["<"] = f"{starts.get('<', '')}|0x[0-9A-Fa-f]{{2}}>"
    if starts:  # costs up to a quarter of the encoding
        patterns = (f"{re.escape(first)}(?={rest[1:]})" for first, rest in starts.items())
        split = pre_tokenizers.Split(tokenizers.Regex("|".join(patterns)), "isolated")
        own = tokenizer.pre_tokenizer
        tokenizer.pre_tokenizer = split if own is None else pre_tokenizers.Sequence([own, split])


def _reads_as(model: models.Model, name: str, number: int) -> bool:
    """Return whether the model reads `name` as this token.

    If it does not by itself, it does not within any text: merges by rank, best segmentations and longest
    matches have that property.
    """
    try:
        return [token.id for token in model.tokenize(name)] == [number]
    except Exception:  # a model without an unknown token refuses what it cannot read
        return False


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> Int32[np.ndarray, " N"]:
    text.encode("utf-8")  # for lone surrogates the library would raise a TypeError
    # Unlike the library's `encode` this lets other threads run: a long text takes seconds.
    with _refusing():
        (encoding,) = tokenizer.encode_batch([text], add_special_tokens=False)
    return np.asarray(encoding.ids, dtype=np.int32)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"text: expected one that the tokenizer can encode ({error})") from error


def write(directory: str | Path, content: str) -> None:
    """Write a ``tokenizer.json``, creating the directory."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(content.encode("utf-8"))


def as_ids(ids: ArrayLike) -> np.ndarray:
    """Return ids as an array; ValueError: not one dimension of integers from 0."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    integers = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    expect(integers and int(array.min()) >= 0, "ids", ids, "one dimension of integers that are not negative")
    return array


LEAST_VOCABULARY = 257
"""Bytes and the document separator."""


def train_byte_level_bpe(
    texts: Iterator[str], vocab_size: int, *, show_progress: bool = False
) -> tokenizers.Tokenizer:
    """Train a byte-level BPE on texts, which are read once; the separator is ``<|endoftext|>``.

    Args:
        vocab_size: tokens, of which 257 are the bytes and the separator; fewer if the texts have fewer pairs.
        show_progress: draw the library's progress bars on stderr.

    Raises:
        ValueError: a smaller vocabulary than 257.
    """
    expected = f"at least {LEAST_VOCABULARY}, the bytes and the document separator"
    expect(vocab_size >= LEAST_VOCABULARY, "vocab_size", vocab_size, expected)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOT_NAMES[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
