"""Keep one record per token, in memory and as Parquet, from which slices are computed without the model.

A model could recall the last tokens of repeated bigrams (Zoology, sections 3.1, C.1). Token t of a sequence
is a repeat if the pair (x_{t-1}, x_t) is also (x_{s-1}, x_s) for an s < t; its distance is t - s for the
largest such s. A repeat is an AR hit if the pair is rare in the training data.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Integer

from based_jax.data import PackedTokens
from based_jax.evals.bigrams.table import BigramTable, bigram_keys
from based_jax.evals.perplexity.scoring import Scores
from based_jax.files import whole_file
from based_jax.imports import import_optional
from based_jax.validate import expect

_KEY = b"based_jax.records"
_DTYPES = {
    "position": np.int64,
    "sequence": np.int32,
    "input": np.int32,
    "target": np.int32,
    "loss": np.float32,
    "predicted": np.int32,
    "predicted_loss": np.float32,
    "distance": np.int32,
}
_GROUP = 1 << 20
"""Rows of a Parquet row group."""

MAX_COUNT = 1250
"""Maximum training count of a rare pair in Zoology and Based."""


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """Columns with one entry per target of a stream, in order.

    Attributes:
        position: int64, position of the target in the stream, from 1.
        sequence: int32, index of the window or document in which it was scored.
        input, target: int32, the token before and the token.
        loss: float32, nats.
        predicted, predicted_loss: int32 and float32, the model's most likely token and its loss.
        distance: int32, tokens since the same bigram ended in this sequence; 0 if it is new.
        count: int64, how often the bigram occurs in the training data; None if unknown.
        info: JSON values that describe the evaluation.
    """

    position: np.ndarray
    sequence: np.ndarray
    input: np.ndarray
    target: np.ndarray
    loss: np.ndarray
    predicted: np.ndarray
    predicted_loss: np.ndarray
    distance: np.ndarray
    count: np.ndarray | None
    info: dict[str, Any]

    def __len__(self) -> int:
        return self.target.size

    def with_counts(self, table: BigramTable) -> "Records":
        """Return the same records with the counts of `table`."""
        highest = int(max(self.input.max(), self.target.max()))
        size = table.vocab_size
        expect(highest < size, "counts", f"a vocabulary of {size}", f"more than {highest}")
        own = self.info.get("vocab_size", size)  # older records lack it
        expect(own == size, "counts", f"a vocabulary of {size}", f"the tokenizer's {own}")
        counts = table.lookup(self.input, self.target).astype(np.int64)
        info = {**self.info, "counts": {"tokens": table.tokens, "source": table.source}}
        return dataclasses.replace(self, count=counts, info=info)

    def sequence_positions(self) -> np.ndarray:
        """Return the position of each target in its window or document, from 0, int64."""
        first = np.searchsorted(self.sequence, self.sequence)  # the first target that it scored
        stride = self.info.get("stride")
        unscored = np.where(self.sequence > 0, self.info["length"] - stride, 0) if stride else 0
        return self.position - self.position[first] + unscored

    def reached(self) -> "Records":
        """Return the records without the tokens that an interrupted scoring did not reach."""
        mask = ~np.isnan(self.loss)
        if mask.all():
            return self
        columns = {name: getattr(self, name)[mask] for name in _DTYPES}
        count = None if self.count is None else self.count[mask]
        return dataclasses.replace(self, **columns, count=count, info={**self.info, "num_bytes": None})


def make_records(
    packed: PackedTokens,
    scores: Scores,
    length: int | None,
    cross_documents: bool,
    info: dict[str, Any],
    stride: int | None = None,
) -> Records:
    """Build the records of a scored stream.

    Args:
        scores: of its T - 1 targets.
        length: tokens per window; None if documents were read whole.
        cross_documents: windows saw across document boundaries, so bigrams may repeat across them too.
        stride: targets between the beginnings of windows; None: `length`.
    """
    sequence, distance = stream_distances(packed, length, cross_documents, stride)
    info = {**info, "length": length, "stride": stride}
    inputs, targets = packed.tokens[:-1].astype(np.int32), packed.tokens[1:].astype(np.int32)
    position = np.arange(1, len(packed), dtype=np.int64)
    return Records(position, sequence, inputs, targets, *scores, distance, None, info)


def write_records(path: str | os.PathLike[str], records: Records) -> None:
    """Write a Parquet file, whole or not at all; `info` is its metadata."""
    pyarrow, parquet = import_pyarrow()
    columns = {name: getattr(records, name) for name in _DTYPES}
    if records.count is not None:
        columns["count"] = records.count
    table = pyarrow.table(columns).replace_schema_metadata({_KEY: json.dumps(records.info)})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        parquet.write_table(table, file, compression="zstd", row_group_size=_GROUP)


def read_records(path: str | os.PathLike[str]) -> Records:
    """Read a file written by `write_records`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file of another kind.
        ImportError: pyarrow is not installed.
    """
    pyarrow, parquet = import_pyarrow()
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: expected a Parquet file of records")
    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: expected a Parquet file ({error})") from error
    info = (table.schema.metadata or {}).get(_KEY, b"")
    missing = sorted(_DTYPES.keys() - set(table.column_names))
    if not info or missing or table.num_rows == 0:
        raise ValueError(f"{path}: expected a file written by --records of eval perplexity")
    columns = {name: table[name].to_numpy().astype(dtype, copy=False) for name, dtype in _DTYPES.items()}
    count = table["count"].to_numpy() if "count" in table.column_names else None
    return Records(**columns, count=count, info=json.loads(info))


def import_pyarrow() -> tuple[Any, Any]:
    """Import `pyarrow` and `pyarrow.parquet`, or raise an ImportError with the install command."""
    arrow, parquet = (
        import_optional(name, "records", "a .parquet file", "eval") for name in ("pyarrow", "pyarrow.parquet")
    )
    return arrow, parquet


def repeat_distances(
    inputs: Integer[np.ndarray, "B N"], targets: Integer[np.ndarray, "B N"]
) -> Int32[np.ndarray, "B N"]:
    """Count the tokens since the previous occurrence of each target's bigram; O(N log N) per row.

    Args:
        inputs, targets: tokens below 2^32.

    Returns:
        int32 (B, N), at least 1 for a repeat, else 0.
    """
    keys = bigram_keys(inputs, targets)
    order = np.argsort(keys, axis=1, kind="stable")  # equal pairs are adjacent, in order of position
    keys = np.take_along_axis(keys, order, axis=1)
    gaps = np.where(keys[:, 1:] == keys[:, :-1], order[:, 1:] - order[:, :-1], 0)
    distances = np.zeros(keys.shape, np.int32)
    np.put_along_axis(distances, order[:, 1:], gaps.astype(np.int32), axis=1)
    return distances


def stream_distances(
    packed: PackedTokens, length: int | None, cross_documents: bool, stride: int | None = None
) -> tuple[Int32[np.ndarray, " targets"], Int32[np.ndarray, " targets"]]:
    """Return the index of each target's sequence in a stream, and its `repeat_distances` there.

    Args:
        length: the stream is read in windows of this many targets; None: document by document.
        cross_documents: bigrams of other documents in the window count too.
        stride: targets between the beginnings of windows; a target belongs to the first that contains it.

    Returns:
        Two arrays int32 (T - 1,).
    """
    target = np.arange(len(packed) - 1)
    # A target belongs to the document of the last separator among its inputs.
    document = np.searchsorted(packed.starts, target, side="right") - 1
    sequence, visible = document, packed.starts[document]
    if length is not None:
        step = stride or length
        sequence = np.maximum((target - length) // step + 1, 0)
        visible = sequence * step if cross_documents else np.maximum(sequence * step, visible)
    (distance,) = repeat_distances(packed.tokens[None, :-1], packed.tokens[None, 1:])
    # If the last occurrence is not visible, neither are those before it.
    return sequence.astype(np.int32), np.where(target - distance >= visible, distance, 0).astype(np.int32)


def is_hit(
    distances: Integer[np.ndarray, "..."],
    counts: Integer[np.ndarray, "..."] | None,
    max_count: int = MAX_COUNT,
) -> Bool[np.ndarray, "..."]:
    """Return a mask of the AR hits: repeats whose pair occurs at most `max_count` times in training.

    Source: Based, Table 1.

    Args:
        counts: training counts of the pairs; None for all repeats.
    """
    repeats = np.asarray(distances) > 0
    return repeats if counts is None else repeats & (np.asarray(counts) <= max_count)
