"""Which text an evaluation reads, with the flags of ``train.lm``, one file or shard after the other."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from based_jax.data import Document, PackedTokens, Skipped, Tokenizer, load_documents, split_documents
from based_jax.data.hub import HUB
from based_jax.data.readers import read_file
from based_jax.data.shards.pairs import TokenPairs
from based_jax.data.shards.reader import TokenShards
from based_jax.data.shards.specs import (
    expect_no_text_flags,
    load_data_tokenizer,
    open_tokens,
    shard_directory,
)
from based_jax.data.sources import find_files
from based_jax.validate import expect

Stretches = Sequence[Int[np.ndarray, " n"]]
"""Stretches of tokens. Every pair of neighbours of the text is in one of them, once."""

_STRETCH = 1 << 20  # tokens


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Where text comes from."""

    data: str | None = None
    """stdlib (Python's own source), a file, a directory, a glob, hf:NAME[:[CONFIG:]SPLIT], or tokens:DIR,
    what train.tokenize wrote: its held-out side, or for counting bigrams its training side"""
    include: str | None = None
    """read these files too, whatever their suffix, e.g. '*.rst,README', as given to train.lm"""
    part: Literal["all", "train", "held_out"] = "all"
    """all documents, or one side of the split that train.lm makes; of tokens:DIR always one side"""
    held_out: float = 0.02
    """share of the documents that is held out, as given to train.lm"""
    held_out_bytes: int = 262144
    """at most so many bytes are held out, as given to train.lm"""
    held_out_names: str | None = None
    """what is held out by name, as given to train.lm"""

    def __str__(self) -> str:
        return str(self.data) if self.part == "all" else f"{self.data} ({self.part})"


def load_text(options: TextOptions) -> Sequence[Document]:
    """The documents, in memory."""
    documents = load_documents(_spec(options), options.include).documents
    if options.part == "all":
        return documents
    sizes = {"fraction": options.held_out, "max_bytes": options.held_out_bytes}
    train, held_out = split_documents(documents, **sizes, names=options.held_out_names)
    return train if options.part == "train" else held_out


def open_text(options: TextOptions, tokenizer: Tokenizer) -> tuple[Sequence[Callable[[], Stretches]], str]:
    """The tokens in parts that are read one after the other, and a checksum of what they are.

    A file or a shard is a part where that is possible: the whole corpus need not fit in memory. The checksum
    is that of the options and of the files' names and sizes, or of the shards' own checksums. Of shards the
    training side is read, unless the options name the other.
    """
    if (directory := shard_directory(_spec(options))) is not None:
        shards = _open_shards(options, directory, tokenizer, "train")
        numbers = range(shards.sizes.size)
        parts = [lambda number=number: _Cut(shards.shard(number)) for number in numbers]
        return parts, hashlib.sha256(repr((options, shards.checksum)).encode()).hexdigest()
    if options.part != "all" or _spec(options).startswith(HUB):
        documents = load_text(options)
        parts = [lambda: _Encoded(documents, tokenizer)]
        found = [(document.name, len(document.text)) for document in documents]
    else:
        skipped: list[Skipped] = []
        files = find_files(_spec(options), skipped, options.include).found
        parts = [
            lambda file=file: _Encoded(read_file(file.path, file.name, is_plain=file.is_plain)[0], tokenizer)
            for file in files
        ]
        found = [(name, path.stat().st_size if path.exists() else -1) for name, path, _ in files]
    return parts, hashlib.sha256(repr((options, found)).encode()).hexdigest()


def pack_text(options: TextOptions, tokenizer: Tokenizer, max_tokens: int) -> tuple[PackedTokens, int | None]:
    """The stream of the documents up to `max_tokens` targets, and its bytes of text unless it was cut.

    Of token shards the held-out side is read, unless the options name the other.
    """
    if (directory := shard_directory(_spec(options))) is not None:
        packed = _open_shards(options, directory, tokenizer, "held_out").head(max_tokens + 2)
    else:
        packed = PackedTokens.from_documents(load_text(options), tokenizer)
    if len(packed) - 1 <= max_tokens:
        return packed, packed.num_bytes or None
    return PackedTokens(packed.tokens[: max_tokens + 1], packed.starts[packed.starts < max_tokens], 0), None


def text_tokenizer(options: TextOptions, tokenizer: str | None) -> Tokenizer:
    """The tokenizer `tokenizer`; None is that of token shards, or bytes for text."""
    return load_data_tokenizer([options.data or ""], tokenizer)


def _open_shards(
    options: TextOptions, directory: Path, tokenizer: Tokenizer, side: Literal["train", "held_out"]
) -> TokenShards | TokenPairs:
    """One side of shards, by default `side`."""
    expect_no_text_flags(options, "include", "held_out", "held_out_bytes", "held_out_names")
    return open_tokens(directory, side if options.part == "all" else options.part, tokenizer)


@dataclasses.dataclass(frozen=True, eq=False)
class _Encoded(Sequence[Int[np.ndarray, " n"]]):
    """Each document between two separators."""

    documents: Sequence[Document]
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: Any) -> Any:
        eot = np.full(1, self.tokenizer.eot, np.int32)
        return np.concatenate([eot, self.tokenizer.encode(self.documents[index].text), eot])


@dataclasses.dataclass(frozen=True, eq=False)
class _Cut(Sequence[Int[np.ndarray, " n"]]):
    """A shard in stretches of which each begins with the last token of the one before."""

    shard: PackedTokens

    def __len__(self) -> int:
        return -(-(len(self.shard) - 1) // _STRETCH)

    def __getitem__(self, index: Any) -> Any:
        return self.shard.tokens[index * _STRETCH : (index + 1) * _STRETCH + 1]


def _spec(options: TextOptions) -> str:
    wanted = "the text: stdlib, a file, a directory, a glob, hf:NAME, or tokens:DIR"
    expect(options.data is not None, "data", None, wanted)
    return str(options.data)
