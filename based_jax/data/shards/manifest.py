"""Define the format of token shards, and manifest.json, which describes a directory of them.

    DIR/manifest.json             a `Manifest`; written last, so a directory without it is unfinished
    DIR/tokenizer.json            read by `load_tokenizer(DIR)`
    DIR/train/00000.tokens.npy    uint16 if the vocabulary fits, else uint32, (T,): EOT d1 EOT d2 ... dn EOT
    DIR/train/00000.starts.npy    int64, (D,): index of each document's leading EOT in this shard
    DIR/held_out/00000.tokens.npy, 00000.starts.npy, ...    the same for the held-out split; may be empty

Each shard is a stream of its own (see `based_jax.data.packed.PackedTokens`): documents are in the order of
the sources, and none continues in another shard.

The files are in NumPy's format: `np.load(path, mmap_mode="r")` maps the array without a copy in memory and
without another package; the header has dtype and shape; and Grain can draw from any array at random. In
ArrayRecord, the other format for random access, each record is decompressed and deserialized at every draw.
"""

import json
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np

from based_jax.fields import Between, expect_fields
from based_jax.files import read_json, whole_file
from based_jax.validate import expect

FILE = "manifest.json"
VERSION = 1
SPLITS = ("train", "held_out")

MAX_BYTES = 256 << 20  # size limit of a manifest, in which a shard takes 200 bytes

Many: TypeAlias = Annotated[int, Between(0, 2**63 - 1)]
AtLeastOne: TypeAlias = Annotated[int, Between(1, 2**63 - 1)]
Crc32: TypeAlias = Annotated[int, Between(0, 2**32 - 1)]

_SHARD = re.compile(r"(train|held_out)/[0-9]{5,9}\.tokens\.npy")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TokenizerRecord:
    """The tokenizer that produced the ids."""

    name: str  # as given to the command; on other machines it is DIR/tokenizer.json
    vocab_size: Annotated[int, Between(1, 2**32)]
    eot: Annotated[int, Between(0, 2**32 - 1)]
    sha256: str  # of DIR/tokenizer.json, in hexadecimal digits

    def __post_init__(self) -> None:
        expect(self.eot < self.vocab_size, "eot", self.eot, f"an id below vocab_size = {self.vocab_size}")
        expect(bool(_SHA256.fullmatch(self.sha256)), "sha256", self.sha256, "64 hexadecimal digits")


@dataclass(frozen=True)
class SourceRecord:
    """One source, and the state of its files when they were read."""

    spec: str  # see `--data` and `based_jax.data.sources`
    include: str | None  # see `--include`
    files: Many  # 0 for a data set of the hub
    bytes: Many  # size of the files on disk
    sha256: str  # of the files' names, sizes and modification times, or of the data set's fingerprint

    def __post_init__(self) -> None:
        expect(bool(_SHA256.fullmatch(self.sha256)), "sha256", self.sha256, "64 hexadecimal digits")


@dataclass(frozen=True)
class HeldOutRule:
    """The rule that selects held-out documents; see `based_jax.data.shards.sides`."""

    fraction: Annotated[float, Between(0, 1)]
    names: str | None
    max_bytes: AtLeastOne | None


@dataclass(frozen=True)
class Shard:
    """Two files with the same number: tokens and starts of the same documents."""

    file: str  # relative to the directory: train/00000.tokens.npy
    documents: AtLeastOne  # D
    tokens: AtLeastOne  # T, including D + 1 separators
    bytes: Many  # UTF-8 bytes of the documents' text
    crc32_tokens: Crc32  # of the array's bytes, little-endian, without the header
    crc32_starts: Crc32

    def __post_init__(self) -> None:
        expect(bool(_SHARD.fullmatch(self.file)), "file", self.file, "SPLIT/NUMBER.tokens.npy")
        least = f"at least {self.documents + 1}, the separators of {self.documents} documents"
        expect(self.tokens > self.documents, "tokens", self.tokens, least)

    @property
    def starts_file(self) -> str:
        return self.file.removesuffix(".tokens.npy") + ".starts.npy"


@dataclass(frozen=True)
class Split:
    """The shards of one split and their sums; no shards if the split has no document."""

    documents: Many
    tokens: Many
    bytes: Many
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        for name in ("documents", "tokens", "bytes"):
            found, total = getattr(self, name), sum(getattr(shard, name) for shard in self.shards)
            expect(found == total, name, found, f"{total}, the sum over the shards")

    @classmethod
    def of(cls, shards: typing.Iterable[Shard]) -> "Split":
        """Build the split of these shards."""
        found = tuple(shards)
        documents, tokens, num_bytes = (
            sum(getattr(shard, name) for shard in found) for name in ("documents", "tokens", "bytes")
        )
        return cls(documents, tokens, num_bytes, found)


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json."""

    tokenizer: TokenizerRecord
    dtype: str  # of the tokens: "uint16" or "uint32"
    sources: tuple[SourceRecord, ...]  # in the order of the documents
    held_out: HeldOutRule
    shard_tokens: AtLeastOne  # maximum tokens of a shard with more than one document
    skipped: Mapping[str, Many]  # number of documents and files in neither split, by reason
    splits: Mapping[str, Split]  # both of `SPLITS`
    text_field: str = "text"  # see `--text-field`
    encoding: str = "utf-8"  # see `--encoding`
    version: int = VERSION

    def __post_init__(self) -> None:
        _expect_version(self.version)
        dtype = token_dtype(self.tokenizer.vocab_size).name
        expect(
            self.dtype == dtype,
            "dtype",
            self.dtype,
            f"{dtype} for a vocabulary of {self.tokenizer.vocab_size}",
        )
        expect({*self.splits} == {*SPLITS}, "splits", [*self.splits], f"the objects {', '.join(SPLITS)}")
        for name, split in self.splits.items():
            for number, shard in enumerate(split.shards):
                expected = shard_file(name, number)
                expect(shard.file == expected, f"splits.{name}.shards[{number}].file", shard.file, expected)

    def write(self, directory: Path) -> None:
        """Write manifest.json, whole or not at all."""
        with whole_file(directory / FILE) as file:
            file.write((json.dumps(self.to_dict(), indent=2) + "\n").encode())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return json.loads(json.dumps({"version": self.version, **asdict(self)}))

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read the manifest of a finished directory.

        Raises:
            FileNotFoundError: no manifest.json: no token shards, or unfinished ones.
            ValueError: another version, or an invalid manifest; the message names the file and the field.
        """
        path = directory / FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"{directory}: expected token shards with a {FILE}; without it there are none, or "
                "based-jax train tokenize has not finished: run it again with the same flags"
            )
        content = read_json(path, max_bytes=MAX_BYTES)
        try:
            if isinstance(content, dict):  # clearer than a message about an unknown key
                _expect_version(content.get("version"))
            return _parsed(cls, content, "manifest")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def shard_file(split: str, number: int) -> str:
    """Return the name of a shard's tokens, relative to the directory."""
    return f"{split}/{number:05}.tokens.npy"


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype of the tokens: uint16 if every id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def _expect_version(version: Any) -> None:
    expect(version == VERSION, "version", version, f"{VERSION}, the version that this code reads")


def _parsed(kind: Any, content: Any, name: str) -> Any:
    """Parse the dataclass `kind` from JSON: exactly its fields, with valid types and ranges."""
    expect(isinstance(content, dict), name, content, "an object")
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING or field.name == "version"}
    expected = f"the keys {', '.join(sorted(names))}"
    expect(needed <= content.keys() <= names, name, sorted(content), expected)
    hints, values = typing.get_type_hints(kind), dict[str, Any]()
    for field, value in content.items():
        here = f"{name}.{field}"
        (item,) = [part for part in typing.get_args(hints[field]) if is_dataclass(part)] or [hints[field]]
        if item is hints[field]:
            values[field] = _parsed(item, value, here) if is_dataclass(item) else value
        elif typing.get_origin(hints[field]) is tuple:
            expect(isinstance(value, list), here, value, "a list")
            values[field] = tuple(_parsed(item, entry, f"{here}[{i}]") for i, entry in enumerate(value))
        else:
            expect(isinstance(value, dict), here, value, "an object")
            values[field] = {key: _parsed(item, entry, f"{here}.{key}") for key, entry in value.items()}
    try:
        expect_fields(kind, values)
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
