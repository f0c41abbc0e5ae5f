"""Convert text to token ids and back: bytes, nucleotides, or any file of the `tokenizers` library."""

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np
import tokenizers
from jaxtyping import Int32
from numpy.typing import ArrayLike

from based_jax import files
from based_jax.data.nucleotides import LETTERS, decode_nucleotides, encode_nucleotides
from based_jax.files import parse_json, read_text
from based_jax.validate import expect

EOT_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Names of the document separator in tokenizer files; the first one that exists is used."""

CHAT_FILES = ("chat_template.jinja", "tokenizer_config.json")
"""Optional files next to a tokenizer's file that define the chat format, see `chat.template`."""

_FILE = "tokenizer.json"
MAX_BYTES = 128 << 20  # size limit of tokenizer.json; one with 256,000 tokens has 33 MB
_SMALL = 1 << 12  # bytes; the file of a built-in tokenizer has about twenty
_GPT2_VOCAB = 50257
_GPT2_REPOSITORIES = ("openai-community/gpt2", "gpt2")
_REPLACEMENT = "\ufffd"  # stands for undecodable bytes
_MAX_INCOMPLETE = 3  # bytes of a UTF-8 character before its last one


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of a tokenizer that the data pipeline, training and generation use."""

    name: str
    """short, for logs and configurations"""
    vocab_size: int
    """number of ids; every id is below it"""
    eot: int
    """id of the document separator, which also starts a text"""

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
        _write(directory, json.dumps({"type": self.name}))


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
        array = _as_ids(ids)
        return array[array < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class NucleotideTokenizer(_BuiltIn):
    """DNA: A C G T N are 0 to 4, the separator is 5; lower case is read as upper case (see `nucleotides`)."""

    name = "dna"
    vocab_size = len(LETTERS) + 1
    eot = len(LETTERS)

    def encode(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as int32 (N,). Raises ValueError for a character that is not a nucleotide."""
        return encode_nucleotides(text).astype(np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Decode `ids`, integers (N,), to upper-case letters; ignore larger ids (separator, padding)."""
        return decode_nucleotides(_as_ids(ids))


class FileTokenizer:
    """A tokenizer of the `tokenizers` library, from the JSON text that the library saves.

    Truncation, padding and special tokens in the file's settings are disabled: documents are encoded whole.

    Raises:
        ValueError: the JSON is not a tokenizer, or none of `EOT_NAMES` is in the vocabulary.
    """

    def __init__(self, content: str, name: str = "tokenizer") -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing more specific
            raise ValueError(f"tokenizer = {name!r}: expected a file of `tokenizers` ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A document that mentions "<|endoftext|>" must not gain a separator.
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        eot = next((vocabulary[token] for token in EOT_NAMES if token in vocabulary), None)
        if eot is None:
            names = ", ".join(EOT_NAMES)
            raise ValueError(f"tokenizer = {name!r}: expected a document separator, one of {names}")
        self.name = name
        self.eot: int = eot
        self.vocab_size: int = max(vocabulary.values()) + 1  # ids may have gaps
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_tokens: Mapping[str, int] = {
            token.content: number for number, token in added.items() if token.special and token.content
        }
        """name -> id of tokens that `encode` never returns"""
        self.chat_files: Mapping[str, bytes] = {}
        """name -> content of the `CHAT_FILES` next to its own file"""

    @functools.cached_property
    def _reading_specials(self) -> tokenizers.Tokenizer:
        """Return a copy for conversations, since other threads may use the original at the same time."""
        copy = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        copy.encode_special_tokens = False
        return copy

    def encode_special(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as int32 (N,), with the names of special tokens encoded as these tokens."""
        text.encode("utf-8")  # for lone surrogates the library would raise a TypeError
        (encoding,) = self._reading_specials.encode_batch([text], add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.int32)

    def encode(self, text: str) -> Int32[np.ndarray, " N"]:
        """Encode `text` as int32 (N,). Raises UnicodeEncodeError for lone surrogates."""
        text.encode("utf-8")  # for lone surrogates the library would raise a TypeError
        # Unlike the library's `encode` this lets other threads run: a long text takes seconds.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " N"]]:
        """Encode several texts, faster than one by one; texts must have no lone surrogates."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        # Half of the time of `np.asarray`.
        return [np.fromiter(ids := encoding.ids, np.int32, len(ids)) for encoding in encodings]

    def decode(self, ids: ArrayLike) -> str:
        """Decode `ids`, integers (N,); ignore the separator, special tokens and unknown ids."""
        array = _as_ids(ids)
        # Not every file marks its separator as special.
        return self._tokenizer.decode(array[array != self.eot].tolist(), skip_special_tokens=True)

    def save(self, directory: str | Path) -> None:
        """Write ``tokenizer.json`` in the library's own format."""
        _write(directory, self._tokenizer.to_str())


class StreamDecoder:
    """Decode ids one by one, for printing while they are generated.

    An incomplete UTF-8 sequence is held back until it is complete or invalid, so the concatenated chunks
    equal `tokenizer.decode` of all ids for every byte-level tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._restart()

    def feed(self, token: int) -> str:
        """Return the text that `token` completes; often empty."""
        self._window.append(int(token))
        text = self._tokenizer.decode(self._window)
        # Bytes that may still become a character decode to trailing replacements: one, or one per byte.
        replacements = len(text) - len(text.rstrip(_REPLACEMENT))
        chunk = text[self._shown : len(text) - min(replacements, _MAX_INCOMPLETE)]
        self._shown += len(chunk)
        if chunk and not replacements:
            # Keep the last chunk as context: some tokenizers decode a text's first word differently.
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._shown = len(self._tokenizer.decode(self._window))
        return chunk

    def flush(self) -> str:
        """Return the text still held back, and reset the decoder for another text."""
        chunk = self._tokenizer.decode(self._window)[self._shown :]
        self._restart()
        return chunk

    def _restart(self) -> None:
        self._window: list[int] = []  # ids of the context, then those after it
        self._context = 0  # number of ids in the context
        self._shown = 0  # number of characters of the decoded window that were returned


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
        path = path / _FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"tokenizer = {str(spec)!r}: expected 'byte', 'dna', 'gpt2', a tokenizer.json file, "
            "or a directory that holds one"
        )
    return _read(path, str(spec))


def find_vocab_size(spec: str | Path = "byte") -> int:
    """Return the vocabulary size of `load_tokenizer(spec)`, with the same errors; "gpt2" needs no file."""
    return _GPT2_VOCAB if spec == "gpt2" else load_tokenizer(spec).vocab_size


def save_chat_files(tokenizer: Tokenizer, directory: str | Path) -> None:
    """Write the chat template's files that were next to the tokenizer's file, if any."""
    for name, content in getattr(tokenizer, "chat_files", {}).items():
        (Path(directory) / name).write_bytes(content)


def _chat_files(directory: Path) -> dict[str, bytes]:
    paths = (directory / name for name in CHAT_FILES)
    known = (path for path in paths if path.is_file() and path.stat().st_size <= files.MAX_BYTES)
    return {path.name: path.read_bytes() for path in known}


def _read(path: Path, name: str) -> Tokenizer:
    tokenizer = _read_file(path, name)
    tokenizer.chat_files = _chat_files(path.parent) if path.name == _FILE else {}
    return tokenizer


def _read_file(path: Path, name: str) -> FileTokenizer | ByteTokenizer | NucleotideTokenizer:
    try:
        content = read_text(path, max_bytes=MAX_BYTES)
        description = parse_json(content, str(path)) if len(content) < _SMALL else None
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer = {name!r}: expected a file with JSON ({error})") from error
    for built_in in _BUILT_IN.values():
        if description == {"type": built_in.name}:
            return built_in()
    return FileTokenizer(content, name)


def _cached_gpt2() -> Path:
    with contextlib.suppress(ImportError):
        import huggingface_hub

        for name in _GPT2_REPOSITORIES:
            if isinstance(cached := huggingface_hub.try_to_load_from_cache(name, _FILE), str):
                return Path(cached)
    raise FileNotFoundError(
        "tokenizer = 'gpt2': expected it in the local Hugging Face cache; "
        "pass the path of GPT-2's tokenizer.json instead"
    )


def _write(directory: str | Path, content: str) -> None:
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FILE).write_bytes(content.encode("utf-8"))


def _as_ids(ids: ArrayLike) -> np.ndarray:
    array = np.asarray(ids)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    integers = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    expect(integers and int(array.min()) >= 0, "ids", ids, "one dimension of integers that are not negative")
    return array
