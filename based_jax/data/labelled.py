"""Load labelled sequences in GenomicBenchmarks' layout: ``train/CLASS/*.txt`` and ``test/CLASS/*.txt``.

Each file has one sequence.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int32, UInt

from based_jax.data.pipeline import Batch
from based_jax.data.tokenizers import Tokenizer
from based_jax.files import read_text
from based_jax.validate import expect


@dataclass(frozen=True, eq=False)
class LabelledSequences:
    """n sequences of tokens, each with a class."""

    tokens: Sequence[UInt[np.ndarray, " _"]]  # n arrays
    labels: Int32[np.ndarray, " n"]  # class indices
    classes: tuple[str, ...]  # class names, at least two

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))

    @cached_property
    def checksum(self) -> int:
        """Return a CRC-32 of tokens and labels, to detect that a run resumes on other data."""
        parts = np.concatenate(self.tokens), np.array([*map(len, self.tokens)]), self.labels
        return zlib.crc32(b"".join(part.tobytes() for part in parts))

    def split(self, share: float, seed: int) -> tuple["LabelledSequences", "LabelledSequences"]:
        """Split off a random share of the sequences; return the rest and that share, determined by the seed.

        Raises:
            ValueError: one of the two would be empty.
        """
        total, count = len(self), round(share * len(self))
        expect(0 < count < total, "share", share, f"one that leaves both parts some of {total} sequences")
        order = np.random.default_rng(seed).permutation(total)
        rest, chosen = (
            LabelledSequences([self.tokens[i] for i in side], self.labels[side], self.classes)
            for side in (np.sort(order[count:]), np.sort(order[:count]))
        )
        return rest, chosen


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Sequences as rows of one length, padded or truncated on the right.

    A row has inputs, int32 (length,); input_mask, bool (length,), False for padding, absent if no row has
    padding; targets, int32, its class; mask, bool, True.
    """

    sequences: LabelledSequences
    length: int

    def __len__(self) -> int:
        return len(self.sequences)

    @cached_property
    def padded(self) -> bool:
        """Return whether any row has padding."""
        return min(map(len, self.sequences.tokens)) < self.length

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        tokens = self.sequences.tokens[index][: self.length]
        inputs = np.zeros(self.length, np.int32)
        inputs[: len(tokens)] = tokens
        row = {"inputs": inputs, "targets": self.sequences.labels[index], "mask": np.bool_(True)}
        return row | ({"input_mask": np.arange(self.length) < len(tokens)} if self.padded else {})

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Yield every row once, in batches of equal size; rows that pad the last batch have mask False."""
        for first in range(0, len(self), batch_size):
            rows = [self[min(i, len(self) - 1)] for i in range(first, first + batch_size)]
            batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            yield batch | {"mask": np.arange(first, first + batch_size) < len(self)}


def load_labelled(
    directory: str | os.PathLike[str], tokenizer: Tokenizer
) -> tuple[LabelledSequences, LabelledSequences]:
    """Load the training and the test split; classes are indexed in the order of their names.

    White space around a sequence is removed.

    Raises:
        FileNotFoundError: a split without files.
        ValueError: fewer than two classes, a class in the test split only, an empty sequence, or one that the
            tokenizer rejects; the message names the file.
    """
    paths = {part: sorted(Path(directory, part).glob("*/*.txt")) for part in ("train", "test")}
    for part, found in paths.items():
        if not found:
            expected = "a directory with train/CLASS/*.txt and test/CLASS/*.txt"
            raise FileNotFoundError(f"data = {str(directory)!r}: expected {expected}; it has no {part} part")
    classes = tuple(sorted({path.parent.name for path in paths["train"]}))
    expected = f"at least two classes; the training part has {classes}"
    expect(len(classes) >= 2, "data", str(directory), expected)
    train, test = (_read(found, classes, tokenizer) for found in paths.values())
    return train, test


def _read(paths: Sequence[Path], classes: tuple[str, ...], tokenizer: Tokenizer) -> LabelledSequences:
    sequences, labels = [], []
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    for path in paths:
        label, text = path.parent.name, read_text(path).strip()
        known = f"one of the training part's, {', '.join(classes)}"
        expect(label in classes, f"{path}: label", label, known)
        expect(bool(text), f"{path}: sequence", text, "at least one letter")
        try:
            sequences.append(tokenizer.encode(text).astype(dtype))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        labels.append(classes.index(label))
    return LabelledSequences(sequences, np.asarray(labels, np.int32), classes)
