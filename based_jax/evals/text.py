"""Which documents an evaluation reads, with the flags of ``train.lm``, one file after the other."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

from based_jax.data import Document, PackedTokens, Skipped, Tokenizer, load_documents, split_documents
from based_jax.data.readers import read_file
from based_jax.data.sources import find_files
from based_jax.validate import expect

Part = Callable[[], Sequence[Document]]
"""Reads some of the documents."""


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Where text comes from."""

    data: str | None = None
    """stdlib (Python's own source), a file, a directory, a glob, or hf:NAME"""
    include: str | None = None
    """read these files too, whatever their suffix, e.g. '*.rst,README', as given to train.lm"""
    part: Literal["all", "train", "held_out"] = "all"
    """all documents, or one side of the split that train.lm makes"""
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


def open_text(options: TextOptions) -> tuple[list[Part], str]:
    """The documents in parts that are read one after the other, and a checksum of what they are.

    A file is a part where that is possible: the whole corpus need not fit in memory. The checksum is that of
    the options and of the files' names and sizes.
    """
    if options.part != "all" or _spec(options).startswith("hf:"):
        documents = load_text(options)
        parts: list[Part] = [lambda: documents]
        found = [(document.name, len(document.text)) for document in documents]
    else:
        skipped: list[Skipped] = []
        files = find_files(_spec(options), skipped, options.include).found
        parts = [lambda path=path, name=name: read_file(path, name)[0] for name, path in files]
        found = [(name, path.stat().st_size if path.exists() else -1) for name, path in files]
    return parts, hashlib.sha256(repr((options, found)).encode()).hexdigest()


def pack_text(options: TextOptions, tokenizer: Tokenizer, max_tokens: int) -> tuple[PackedTokens, int | None]:
    """The stream of the documents up to `max_tokens` targets, and its bytes of text unless it was cut."""
    packed = PackedTokens.from_documents(load_text(options), tokenizer)
    if len(packed) - 1 <= max_tokens:
        return packed, packed.num_bytes
    return PackedTokens(packed.tokens[: max_tokens + 1], packed.starts[packed.starts < max_tokens], 0), None


def _spec(options: TextOptions) -> str:
    wanted = "the text: stdlib, a file, a directory, a glob, or hf:NAME"
    expect(options.data is not None, "data", None, wanted)
    return str(options.data)
