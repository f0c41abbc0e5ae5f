"""Convert text to token ids and back: bytes, nucleotides, or any file of the `tokenizers` library."""

import codecs
import contextlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int32
from numpy.typing import ArrayLike

from based_jax import files
from based_jax.data.file_tokenizer import FILE, REPLACEMENT, FileTokenizer, as_ids, write
from based_jax.files import parse_json, read_object, read_text
from based_jax.validate import expect

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
GENERATION_FILE = "generation_config.json"
CHAT_FILES = (TEMPLATE_FILE, CONFIG_FILE, GENERATION_FILE)
"""Optional files next to a tokenizer's file: the chat format (see `chat.template`) and ends of answers."""

MAX_BYTES = 128 << 20  # size limit of tokenizer.json; one with 256,000 tokens has 33 MB
_SMALL = 1 << 12  # bytes; the file of a built-in tokenizer has about twenty
_GPT2_VOCAB = 50257
_GPT2_REPOSITORIES = ("openai-community/gpt2", "gpt2")
_MAX_INCOMPLETE = 3  # bytes of a UTF-8 character before its last one
_WORDS = 8  # ids of a context, if their text is long enough
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

_LETTERS = "ACGTN"  # for ids 0, 1, ..., 4
_AMBIGUOUS = "RYSWKMBDHV"  # IUPAC's codes for several bases, read as N
_UNKNOWN = 255
_TO_ID = bytearray([_UNKNOWN] * 256)
for _letter in (*_LETTERS, *_AMBIGUOUS, "U"):
    _id = _LETTERS.index({"U": "T"}.get(_letter, _letter if _letter in _LETTERS else "N"))
    _TO_ID[ord(_letter)] = _TO_ID[ord(_letter.lower())] = _id
_NO_NUCLEOTIDE = re.compile(f"[^{_LETTERS}U{_AMBIGUOUS}]", re.IGNORECASE | re.ASCII)

Ids: TypeAlias = Sequence[int] | np.ndarray


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of a tokenizer that the data pipeline, training and generation use."""

    name: str
    """short, for logs and configurations"""
    vocab_size: int
    """number of ids; every id is below it"""
    eot: int
    """id of the document separator, which also starts a text, unless `text_start` is another"""

    def encode(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as int32 (N,), without separators; a separator's name inside `text` is plain text."""
        ...

    def decode(self, ids: ArrayLike) -> str:
        """Decode `ids`, integers (N,); ids without text are ignored, invalid UTF-8 becomes U+FFFD."""
        ...

    def save(self, directory: str | Path) -> None:
        """Write the files that `load_tokenizer(directory)` needs, creating the directory."""
        ...


class _BuiltIn:
    """A tokenizer that needs no file: ``tokenizer.json`` contains only its name."""

    name: str
    chat_files: Mapping[str, bytes] = MappingProxyType({})

    def save(self, directory: str | Path) -> None:
        write(directory, json.dumps({"type": self.name}))


class ByteTokenizer(_BuiltIn):
    """UTF-8 bytes, and 256 as the separator. Needs no file and encodes every text."""

    name = "byte"
    vocab_size = 257
    eot = 256

    def encode(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as its UTF-8 bytes, int32 (N,). Raises UnicodeEncodeError for lone surrogates."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Decode the bytes among `ids`, integers (N,); ignore larger ids (separator, padding)."""
        array = as_ids(ids)
        return array[array < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the byte; none for larger ids."""
        return bytes([token]) if token < 256 else b""


class NucleotideTokenizer(_BuiltIn):
    """DNA: A C G T, and N for an unknown base, are 0 to 4, the separator is 5.

    Lower case is read as upper case: in genome assemblies it marks repeats, not other bases. U is read as T.
    The other IUPAC codes stand for two or three bases (R is A or G, ...) and become N. The tokenizer of
    HyenaDNA's code (arXiv:2306.15794) has the same five letters, but maps lower case to unknown.
    """

    name = "dna"
    vocab_size = len(_LETTERS) + 1
    eot = len(_LETTERS)

    def encode(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as int32 (N,); ValueError names an unknown character and its position."""
        # `translate` runs over the bytes in C; a non-ASCII character becomes "?", which is unknown as well.
        ids = np.frombuffer(text.encode("ascii", errors="replace").translate(_TO_ID), dtype=np.uint8)
        if ids.size and ids.max() == _UNKNOWN:
            other = _NO_NUCLEOTIDE.search(text)
            assert other is not None
            expected = "a nucleotide: A C G T U N or another of IUPAC's codes, in upper or lower case"
            expect(False, f"character {other.start():,} of a sequence", other.group(), expected)
        return ids.astype(np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Decode `ids`, integers (N,), to upper-case letters; ignore larger ids (separator, padding)."""
        array, letters = as_ids(ids), np.frombuffer(_LETTERS.encode("ascii"), dtype=np.uint8)
        return letters[array[array < len(_LETTERS)]].tobytes().decode("ascii")


class StreamDecoder:
    """Decode ids one by one, for printing while they are generated.

    An incomplete UTF-8 sequence is held back until it is complete or invalid, so the concatenated chunks
    equal what `tokenizer.decode` of all ids adds to that of `context`.

    Args:
        context: ids before the first one. If their text ends within a character, the chunks begin with it.
    """

    def __init__(self, tokenizer: Tokenizer, context: Ids = ()) -> None:
        self._tokenizer = tokenizer
        # Ids to decode: some before the next one, since decoders treat the first word of a text differently.
        self._window = _last_words(tokenizer, context)
        # Characters of the decoded window that were returned.
        self._shown = len(complete_text(tokenizer, self._window)) if self._window else 0

    def feed(self, token: int) -> str:
        """Return the text that `token` completes; often empty."""
        self._window.append(int(token))
        text = self._tokenizer.decode(self._window)
        # Bytes that may still become a character decode to trailing replacements: one, or one per byte.
        replacements = len(text) - len(text.rstrip(REPLACEMENT))
        chunk = text[self._shown : len(text) - min(replacements, _MAX_INCOMPLETE)]
        self._shown += len(chunk)
        if len(self._window) > 2 * _WORDS:
            held = len(text) - self._shown
            self._window = _last_words(self._tokenizer, self._window, held)
            self._shown = len(self._tokenizer.decode(self._window)) - held
        return chunk

    def flush(self) -> str:
        """Return the text still held back, and reset the decoder for another text."""
        chunk = self._tokenizer.decode(self._window)[self._shown :]
        self._window, self._shown = [], 0
        return chunk


def decode_after(tokenizer: Tokenizer, context: Ids, ids: Ids) -> str:
    """Decode `ids` as what follows `context`, whose text is not returned; see `StreamDecoder`."""
    words = _last_words(tokenizer, context)
    return tokenizer.decode([*words, *ids])[len(complete_text(tokenizer, words)) :]


def complete_text(tokenizer: Tokenizer, ids: Ids) -> str:
    """Decode `ids` without a character at their end that lacks bytes."""
    text = tokenizer.decode(ids)
    if not text.endswith(REPLACEMENT):
        return text
    data, left = b"", len(ids)
    while left and len(data) <= _MAX_INCOMPLETE:
        left -= 1
        data = token_bytes(tokenizer, ids[left]) + data
    reader = codecs.getincrementaldecoder("utf-8")("replace")
    reader.decode(data)
    pending = len(reader.getstate()[0])
    # One replacement stands for them all, or with byte fallback one for each.
    return text[: len(text) - (pending if getattr(tokenizer, "byte_tokens", None) else min(pending, 1))]


def _last_words(tokenizer: Tokenizer, ids: Ids, held: int = 0) -> list[int]:
    """Return as many of the last ids as are needed to decode what follows them.

    They begin before an incomplete character at the end, which is decoded as `held` characters.
    """
    size = _WORDS  # doubled for special tokens, which are not decoded
    while size < len(ids) and len(tokenizer.decode(ids[-size:])) <= held + _MAX_INCOMPLETE:
        size *= 2
    return [int(token) for token in ids[-size:]]


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes that a token adds to a text in UTF-8; none for special tokens and unknown ids."""
    own = getattr(tokenizer, "token_bytes", None)
    return tokenizer.decode([token]).encode() if own is None else own(token)


def text_start(tokenizer: Tokenizer) -> int:
    """Return the token before a text: the one that the tokenizer's file puts there, or the separator."""
    return getattr(tokenizer, "start", tokenizer.eot)


def stop_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that end a generated text: the separator, and those that its files name."""
    return getattr(tokenizer, "stop_tokens", (tokenizer.eot,))


_BUILT_IN: dict[str | Path, type[ByteTokenizer] | type[NucleotideTokenizer]] = {
    tokenizer.name: tokenizer for tokenizer in (ByteTokenizer, NucleotideTokenizer)
}


def load_tokenizer(spec: str | Path = "byte") -> Tokenizer:
    """Load a tokenizer.

    Args:
        spec: "byte"; "dna"; "gpt2" (from the local Hugging Face cache, nothing is downloaded); a `tokenizers`
            JSON file; or a directory with a ``tokenizer.json``, such as `Tokenizer.save` writes.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file that is not a tokenizer or has no document separator.
    """
    if spec in _BUILT_IN:
        return _BUILT_IN[spec]()
    if spec == "gpt2":
        return _read(_cached_gpt2(), "gpt2")
    path = Path(spec)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"tokenizer = {str(spec)!r}: expected 'byte', 'dna', 'gpt2', a tokenizer.json file, "
            "or a directory that holds one"
        )
    return _read(path, str(spec))


def find_vocab_size(spec: str | Path = "byte") -> int:
    """Return the vocabulary size of `load_tokenizer(spec)`, with the same errors; "gpt2" needs no file."""
    return _GPT2_VOCAB if spec == "gpt2" else load_tokenizer(spec).vocab_size


def saved_bytes(tokenizer: Tokenizer) -> bytes:
    """Return the content of the file that `tokenizer.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return Path(folder, FILE).read_bytes()


def save_chat_files(tokenizer: Tokenizer, directory: str | Path) -> None:
    """Write the chat template's files that were next to the tokenizer's file, if any."""
    for name, content in getattr(tokenizer, "chat_files", {}).items():
        (Path(directory) / name).write_bytes(content)


def add_stop_tokens(tokenizer: Tokenizer, directory: Path) -> None:
    """Add the ends of texts that a model's directory lists; see `generation_settings`."""
    value = generation_settings(directory).get("eos_token_id")
    found = value if isinstance(value, list) else [value]
    known = {token for token in found if type(token) is int and 0 <= token < tokenizer.vocab_size}
    tokenizer.stop_tokens = tuple(sorted({*stop_tokens(tokenizer), *known}))  # pyright: ignore


def generation_settings(directory: Path) -> Mapping[str, Any]:
    """Return a model's ``generation_config.json``; without one the ends of texts in its ``config.json``."""
    if (directory / GENERATION_FILE).is_file():
        return read_object(directory / GENERATION_FILE)
    path = directory / "config.json"
    config = read_object(path) if path.is_file() else {}
    text = config.get("text_config")
    inner = text.get("eos_token_id") if isinstance(text, dict) else None
    ends = inner if config.get("eos_token_id") is None else config["eos_token_id"]
    return {} if ends is None else {"eos_token_id": ends}


def special_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of a ``tokenizer_config.json``: such as "eos_token" -> "</s>"."""
    names = {f"{name}_token": _content(config.get(f"{name}_token")) for name in _NAMES}
    return {name: token for name, token in names.items() if token is not None}


def _other_special_names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the special tokens of a ``tokenizer_config.json`` that have no role."""
    listed, added = config.get("additional_special_tokens"), config.get("added_tokens_decoder")
    marked = added.values() if isinstance(added, dict) else ()
    marked = [token for token in marked if isinstance(token, dict) and token.get("special") is True]
    yield from filter(None, map(_content, [*(listed if isinstance(listed, list) else ()), *marked]))


def _content(value: Any) -> str | None:
    """Return a special token's text, from a string or an object that describes the token."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _chat_files(directory: Path) -> dict[str, bytes]:
    paths = (directory / name for name in CHAT_FILES)
    known = (path for path in paths if path.is_file() and path.stat().st_size <= files.MAX_BYTES)
    settings = generation_settings(directory)
    made = {GENERATION_FILE: json.dumps(settings).encode()} if settings else {}
    return made | {path.name: path.read_bytes() for path in known}


def _read(path: Path, name: str) -> Tokenizer:
    directory, is_own = path.parent, path.name == FILE
    config = directory / CONFIG_FILE
    described = read_object(config) if is_own and config.is_file() else {}
    named = special_names(described)
    tokenizer = _read_file(path, name, [*named.values(), *_other_special_names(described)])
    if (
        isinstance(tokenizer, FileTokenizer)
        and (end := named.get("eos_token", "")) in tokenizer.special_tokens
    ):
        tokenizer.stop_tokens = (*tokenizer.stop_tokens, tokenizer.special_tokens[end])
    if is_own:
        tokenizer.chat_files = _chat_files(directory)
        add_stop_tokens(tokenizer, directory)
    return tokenizer


def _read_file(
    path: Path, name: str, special: Iterable[str]
) -> FileTokenizer | ByteTokenizer | NucleotideTokenizer:
    try:
        content = read_text(path, max_bytes=MAX_BYTES)
        description = parse_json(content, str(path)) if len(content) < _SMALL else None
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer = {name!r}: expected a file with JSON ({error})") from error
    for built_in in _BUILT_IN.values():
        if description == {"type": built_in.name}:
            return built_in()
    return FileTokenizer(content, name, special)


def _cached_gpt2() -> Path:
    with contextlib.suppress(ImportError):
        import huggingface_hub

        for name in _GPT2_REPOSITORIES:
            if isinstance(cached := huggingface_hub.try_to_load_from_cache(name, FILE), str):
                return Path(cached)
    raise FileNotFoundError(
        "tokenizer = 'gpt2': expected it in the local Hugging Face cache; "
        "pass the path of GPT-2's tokenizer.json instead"
    )
