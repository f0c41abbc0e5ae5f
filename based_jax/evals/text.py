"""Open the text of an evaluation, with the flags of ``train lm``, one file or shard after the other."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from jaxtyping import Int

from based_jax.data import Document, PackedTokens, ReadOptions, Tokenizer, load_documents, split_documents
from based_jax.data.hub import HUB
from based_jax.data.reading import load_file
from based_jax.data.shards.reader import (
    TokenShards,
    expect_no_text_flags,
    open_tokens,
    shard_directory,
)
from based_jax.data.sources import find_files
from based_jax.validate import expect

Stretches = Sequence[Callable[[], Int[np.ndarray, " n"]]]
"""Readers of arrays of tokens that contain every pair of neighbouring tokens of the text exactly once."""

_STRETCH = 1 << 20  # tokens


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """The text of an evaluation."""

    data: str | None = None
    """stdlib (Python's own source), a file, a directory, a glob, hf:NAME[:[CONFIG:]SPLIT], or tokens:DIR for
    the output of train tokenize: its held-out split, or for counting bigrams its training split"""
    include: str | None = None
    """also read these files, whatever their suffix, e.g. '*.rst,README', as given to train lm"""
    reading: Annotated[ReadOptions, tyro.conf.arg(name="")] = ReadOptions()  # noqa: RUF009
    part: Literal["all", "train", "held_out"] = "all"
    """all documents, or one split of train lm; for tokens:DIR always one split"""
    held_out: float = 0.02
    """share of held-out documents, as given to train lm"""
    held_out_bytes: int = 262144
    """maximum bytes of held-out text, as given to train lm"""
    held_out_names: str | None = None
    """names of held-out files or records, as given to train lm"""

    def __str__(self) -> str:
        return str(self.data) if self.part == "all" else f"{self.data} ({self.part})"


def load_text(options: TextOptions) -> Sequence[Document]:
    """Load the documents into memory."""
    documents = load_documents(_spec(options), options.include, options=options.reading).documents
    if options.part == "all":
        return documents
    sizes = {"fraction": options.held_out, "max_bytes": options.held_out_bytes}
    train, held_out = split_documents(documents, **sizes, held_out_names=options.held_out_names)
    return train if options.part == "train" else held_out


def open_text(options: TextOptions, tokenizer: Tokenizer) -> tuple[Sequence[Callable[[], Stretches]], str]:
    """Return the tokens in parts that are read one after the other, and a checksum that identifies them.

    A part is a file or a shard where possible, so the whole corpus need not fit in memory. The checksum
    covers the options and the files' names and sizes, or the shards' own checksums. For shards the training
    split is read, unless the options name the other.
    """
    if (directory := shard_directory(_spec(options))) is not None:
        shards = _open_shards(options, directory, tokenizer, "train")
        numbers = range(shards.sizes.size)
        parts = [lambda number=number: _cut(shards.shard(number)) for number in numbers]
        return parts, hashlib.sha256(repr((options, shards.checksum)).encode()).hexdigest()
    if options.part != "all" or _spec(options).startswith(HUB):
        documents = load_text(options)
        parts = [lambda: _encoded(documents, tokenizer)]
        found = [(document.name, len(document.text)) for document in documents]
    else:
        files = find_files(_spec(options), options.include).found
        parts = [lambda file=file: _encoded(load_file(file, options.reading), tokenizer) for file in files]
        found = [(file.name, file.size) for file in files]
    return parts, hashlib.sha256(repr((options, found)).encode()).hexdigest()


def pack_text(options: TextOptions, tokenizer: Tokenizer, max_tokens: int) -> tuple[PackedTokens, int | None]:
    """Pack the documents up to `max_tokens` targets; also return the bytes of text, None if it was cut.

    For token shards the held-out split is read, unless the options name the other.
    """
    if (directory := shard_directory(_spec(options))) is not None:
        packed = _open_shards(options, directory, tokenizer, "held_out").head(max_tokens + 2)
    else:
        packed = PackedTokens.from_documents(load_text(options), tokenizer)
    if len(packed) - 1 <= max_tokens:
        return packed, packed.num_bytes or None
    starts = packed.starts[packed.starts < max_tokens]
    return PackedTokens(packed.tokens[: max_tokens + 1], starts, 0, packed.start), None


def _open_shards(
    options: TextOptions, directory: Path, tokenizer: Tokenizer, side: Literal["train", "held_out"]
) -> TokenShards:
    """Open one split of shards, by default `side`."""
    expect_no_text_flags(options)
    return open_tokens(directory, side if options.part == "all" else options.part, tokenizer)


def _encoded(documents: Sequence[Document], tokenizer: Tokenizer) -> Stretches:
    """Return the documents of a file, each between two separators."""

    def encode(document: Document) -> np.ndarray:
        eot = np.full(1, tokenizer.eot, np.int32)
        return np.concatenate([eot, tokenizer.encode(document.text), eot])

    return [functools.partial(encode, document) for document in documents]


def _cut(shard: PackedTokens) -> Stretches:
    """Return a shard cut into arrays, each of which begins with the last token of the previous one."""
    begins = range(0, len(shard) - 1, _STRETCH)
    return [lambda begin=begin: shard.tokens[begin : begin + _STRETCH + 1] for begin in begins]


def _spec(options: TextOptions) -> str:
    wanted = "the text: stdlib, a file, a directory, a glob, hf:NAME, or tokens:DIR"
    expect(options.data is not None, "data", None, wanted)
    return str(options.data)
