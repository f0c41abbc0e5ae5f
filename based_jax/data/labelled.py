"""Load labelled sequences for classification: one directory per class, or tables with a label column.

=============================================  ===========================================================
in the directory                               as in
=============================================  ===========================================================
``train/CLASS/*.txt``, ``test/CLASS/*.txt``    GenomicBenchmarks, one sequence in each file
``train.csv``, ``test.csv``                    GUE (DNABERT-2), columns ``sequence`` and ``label``
=============================================  ===========================================================
"""

import csv
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64, UInt

from based_jax.data.pipeline import Batch
from based_jax.data.tokenizers import Tokenizer
from based_jax.files import read_text
from based_jax.validate import expect

MAX_BYTES = 128 << 20  # limit per file

_EXPECTED = "a directory with train/CLASS/*.txt and test/CLASS/*.txt, or train.csv and test.csv"


@dataclass(frozen=True, eq=False)
class LabelledSequences:
    """n sequences of tokens, each with a class."""

    tokens: UInt[np.ndarray, " T"]  # all sequences, concatenated
    starts: Int64[np.ndarray, " m"]  # start of each sequence, then T; m = n + 1
    labels: Int32[np.ndarray, " n"]  # class indices
    classes: tuple[str, ...]  # class names, at least two

    def __len__(self) -> int:
        return self.labels.size

    @property
    def longest(self) -> int:
        return int(np.diff(self.starts).max())

    @cached_property
    def checksum(self) -> int:
        """Return a CRC-32 of tokens and labels, to detect that a run resumes on other data."""
        return zlib.crc32(self.labels.data, zlib.crc32(self.starts.data, zlib.crc32(self.tokens.data)))

    def split(self, validation: float, seed: int) -> tuple["LabelledSequences", "LabelledSequences"]:
        """Split off this share of the sequences at random; return the rest and them, determined by the seed.

        Raises:
            ValueError: one of the two would be empty.
        """
        total, count = len(self), round(validation * len(self))
        expected = f"a share that leaves both parts some of {total} sequences"
        expect(0 < count < total, "validation", validation, expected)
        order = np.random.default_rng(seed).permutation(total)
        return self.subset(np.sort(order[count:])), self.subset(np.sort(order[:count]))

    def subset(self, indices: Sequence[int] | np.ndarray) -> "LabelledSequences":
        """Return the sequences with these indices, in this order."""
        chunks = [self.tokens[self.starts[i] : self.starts[i + 1]] for i in indices]
        starts = np.cumsum([0, *map(len, chunks)], dtype=np.int64)
        return LabelledSequences(np.concatenate(chunks), starts, self.labels[indices], self.classes)


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Sequences as rows of one length, padded or truncated on the right.

    A row has inputs, int32 (length,); input_mask, bool (length,), False for padding, absent if no row has
    padding; targets, int32, its class; mask, bool, True.
    """

    sequences: LabelledSequences
    length: int

    def __post_init__(self) -> None:
        expect(self.length >= 1, "length", self.length, "at least 1")

    def __len__(self) -> int:
        return len(self.sequences)

    @cached_property
    def padded(self) -> bool:
        """Return whether any row has padding."""
        return bool(np.diff(self.sequences.starts).min() < self.length)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        start, end = self.sequences.starts[index : index + 2]
        real = min(int(end - start), self.length)
        inputs = np.zeros(self.length, np.int32)
        inputs[:real] = self.sequences.tokens[start : start + real]
        row = {"inputs": inputs, "targets": self.sequences.labels[index], "mask": np.bool_(True)}
        return row | ({"input_mask": np.arange(self.length) < real} if self.padded else {})

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Yield every row once, in batches of equal size; rows that pad the last batch have mask False."""
        for first in range(0, len(self), batch_size):
            rows = [self[min(i, len(self) - 1)] for i in range(first, first + batch_size)]
            batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            yield batch | {"mask": np.arange(first, first + batch_size) < len(self)}


def load_labelled(
    directory: str | os.PathLike[str], tokenizer: Tokenizer
) -> tuple[LabelledSequences, LabelledSequences]:
    """Load the training and the test split of a directory (see the module's table).

    Classes are indexed in the order of their names, or of their values if all are numbers. White space around
    a sequence is removed.

    Raises:
        FileNotFoundError: no such directory, or none of the files in the table.
        ValueError: fewer than two classes, a class in the test split only, an empty sequence, a broken line,
            or a sequence that the tokenizer rejects; the message names file and line.
    """
    root = Path(directory)
    train, test = _read_part(root, "train"), _read_part(root, "test")
    labels = {label for _, _, label in train}
    classes = tuple(sorted(labels, key=int if all(label.isdecimal() for label in labels) else str))
    expected = f"at least two classes; the training part has {classes}"
    expect(len(classes) >= 2, "data", str(directory), expected)
    return _encode(train, classes, tokenizer), _encode(test, classes, tokenizer)


def _encode(
    examples: list[tuple[str, str, str]], classes: tuple[str, ...], tokenizer: Tokenizer
) -> LabelledSequences:
    chunks, labels = [], []
    dtype = np.min_scalar_type(tokenizer.vocab_size - 1)
    known = f"one of the training part's, {', '.join(classes)}"
    for location, sequence, label in examples:
        expect(label in classes, f"{location}: label", label, known)
        try:
            tokens = tokenizer.encode(sequence)
        except ValueError as error:
            raise ValueError(f"{location}: {error}") from error
        expect(tokens.size > 0, f"{location}: sequence", sequence, "at least one letter")
        chunks.append(tokens.astype(dtype))
        labels.append(classes.index(label))
    starts = np.cumsum([0, *map(len, chunks)], dtype=np.int64)
    return LabelledSequences(np.concatenate(chunks), starts, np.asarray(labels, np.int32), classes)


def _read_part(root: Path, part: str) -> list[tuple[str, str, str]]:
    """Return (location, sequence, label) of every example."""
    table = root / f"{part}.csv"
    if (root / part).is_dir():
        paths = sorted(path for path in (root / part).glob("*/*.txt") if path.is_file())
        examples = [
            (str(path), read_text(path, max_bytes=MAX_BYTES).strip(), path.parent.name) for path in paths
        ]
    elif table.is_file():
        examples = list(_read_csv(table))
    else:
        raise FileNotFoundError(f"data = {str(root)!r}: expected {_EXPECTED}; there is no {part} part")
    expect(bool(examples), "data", str(root), f"{_EXPECTED}; its {part} part is empty")
    return examples


def _read_csv(path: Path) -> Iterator[tuple[str, str, str]]:
    # Without newline translation, only unquoted line ends separate rows. `strict` refuses a quote without an
    # end, which would take the rest of the file into one row.
    reader = csv.DictReader(io.StringIO(read_text(path, max_bytes=MAX_BYTES), newline=""), strict=True)
    limit = csv.field_size_limit(MAX_BYTES)  # of the whole process
    try:
        for row in reader:
            line, sequence, label = f"{path}, line {reader.line_num}", row.get("sequence"), row.get("label")
            whole = isinstance(sequence, str) and isinstance(label, str)
            expect(whole, line, row, "a string 'sequence' and a 'label'")
            yield line, str(sequence).strip(), str(label)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num + 1}: expected CSV ({error})") from error
    finally:
        csv.field_size_limit(limit)
