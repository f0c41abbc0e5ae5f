"""Define the format of token shards, and manifest.json, which describes a directory of them.

    DIR/manifest.json             a `Manifest`; written last, so a directory without it is unfinished
    DIR/tokenizer.json            read by `load_tokenizer(DIR)`
    DIR/train/00000.tokens.npy    uint16 if the vocabulary fits, else uint32, (T,): EOT d1 EOT d2 ... dn EOT
    DIR/train/00000.starts.npy    int64, (D,): index of each document's leading EOT in this shard
    DIR/held_out/00000.tokens.npy, 00000.starts.npy, ...    the same for the held-out split; may be empty

Each shard is a stream of its own (see `based_jax.data.packed.PackedTokens`): documents are in the order of
the sources, and none continues in another shard. `np.load(path, mmap_mode="r")` maps an array without a copy
in memory, and Grain can draw from any array at random.
"""

import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np

from based_jax.fields import Between, expect_fields
from based_jax.files import read_json, write_json
from based_jax.validate import expect

FILE = "manifest.json"
VERSION = 1
SPLITS = ("train", "held_out")

MAX_BYTES = 256 << 20  # size limit of a manifest, in which a shard takes 200 bytes

Many: TypeAlias = Annotated[int, Between(0, 2**63 - 1)]


class _Record:
    """A part of the manifest: its fields have the types of their annotations."""

    def __post_init__(self) -> None:
        expect_fields(type(self), vars(self))


@dataclass(frozen=True)
class TokenizerRecord(_Record):
    """The tokenizer that produced the ids."""

    name: str  # as given to the command; on other machines it is DIR/tokenizer.json
    vocab_size: Annotated[int, Between(1, 2**32)]
    eot: Many
    sha256: str  # of DIR/tokenizer.json, in hexadecimal digits


@dataclass(frozen=True)
class SourceRecord(_Record):
    """One source, and the state of its files when they were read."""

    spec: str  # see `--data` and `based_jax.data.sources`
    include: str | None  # see `--include`
    files: Many  # 0 for a data set of the hub
    bytes: Many  # size of the files on disk
    sha256: str  # of the files' names, sizes and modification times, or of the data set's fingerprint


@dataclass(frozen=True)
class HeldOutRule(_Record):
    """The rule that selects held-out documents; see `based_jax.data.splits`."""

    fraction: Annotated[float, Between(0, 1)]
    names: str | None
    max_bytes: Many | None


@dataclass(frozen=True)
class Shard(_Record):
    """Two files with the same number: tokens and starts of the same documents."""

    file: str  # relative to the directory: train/00000.tokens.npy
    documents: Many  # D
    tokens: Many  # T, including D + 1 separators
    bytes: Many  # UTF-8 bytes of the documents' text
    crc32_tokens: Many  # of the array's bytes, little-endian, without the header
    crc32_starts: Many

    @property
    def starts_file(self) -> str:
        return self.file.removesuffix(".tokens.npy") + ".starts.npy"


@dataclass(frozen=True)
class Split(_Record):
    """The shards of one split and their sums; no shards if the split has no document."""

    documents: Many
    tokens: Many
    bytes: Many
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, shards: typing.Iterable[Shard]) -> "Split":
        """Build the split of these shards."""
        found = tuple(shards)
        names = ("documents", "tokens", "bytes")
        sums = {name: sum(getattr(shard, name) for shard in found) for name in names}
        return cls(**sums, shards=found)


@dataclass(frozen=True)
class Manifest(_Record):
    """The content of manifest.json."""

    tokenizer: TokenizerRecord
    dtype: str  # of the tokens: "uint16" or "uint32"
    sources: tuple[SourceRecord, ...]  # in the order of the documents
    held_out: HeldOutRule
    shard_tokens: Many  # maximum tokens of a shard with more than one document
    skipped: Mapping[str, Many]  # number of documents and files in neither split, by reason
    splits: Mapping[str, Split]  # both of `SPLITS`
    text_field: str = "text"  # see `--text-field`
    encoding: str = "utf-8"  # see `--encoding`
    version: int = VERSION

    def __post_init__(self) -> None:
        super().__post_init__()
        expect({*self.splits} == {*SPLITS}, "splits", [*self.splits], f"the objects {', '.join(SPLITS)}")
        for name, split in self.splits.items():
            for number, shard in enumerate(split.shards):  # no file outside of the directory
                expected = shard_file(name, number)
                expect(shard.file == expected, f"splits.{name}.shards[{number}].file", shard.file, expected)

    def write(self, directory: Path) -> None:
        """Write manifest.json, whole or not at all."""
        write_json(directory / FILE, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, in the order of the file."""
        return {"version": self.version, **asdict(self)}

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read the manifest of a finished directory.

        Raises:
            FileNotFoundError: no manifest.json: no token shards, or unfinished ones.
            ValueError: another version, or an invalid manifest; the message names the file.
        """
        path = directory / FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"{directory}: expected token shards with a {FILE}; without it there are none, or "
                "based-jax train tokenize has not finished: run it again with the same flags"
            )
        content = read_json(path, max_bytes=MAX_BYTES)
        try:
            version = content.get("version")
            expect(version == VERSION, "version", version, f"{VERSION}, the version that this code reads")
            parts = {
                "tokenizer": TokenizerRecord(**content["tokenizer"]),
                "sources": tuple(SourceRecord(**source) for source in content["sources"]),
                "held_out": HeldOutRule(**content["held_out"]),
                "splits": {name: _parsed_split(split) for name, split in content["splits"].items()},
            }
            return cls(**{**content, **parts})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: expected the manifest of token shards ({error})") from error


def _parsed_split(content: Mapping[str, Any]) -> Split:
    return Split(**{**content, "shards": tuple(Shard(**shard) for shard in content["shards"])})


def shard_file(split: str, number: int) -> str:
    """Return the name of a shard's tokens, relative to the directory."""
    return f"{split}/{number:05}.tokens.npy"


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype of the tokens: uint16 if every id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
