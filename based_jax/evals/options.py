"""What the evaluations share: flags and checkpoint, records that resume, progress, and output of results."""

import contextlib
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from based_jax import command
from based_jax.convert.pretrained import find_directory, find_tokenizer, load_pretrained
from based_jax.data.tokenizers import Tokenizer
from based_jax.files import JsonLines, naming
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect

T = TypeVar("T")


class Opened(NamedTuple):
    """A checkpoint to evaluate."""

    model: LanguageModel
    params: Params
    tokenizer: Tokenizer
    directory: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Options that evaluations of a checkpoint share."""

    checkpoint: str
    """pretrained directory (config.json, weights, tokenizer), a run's directory, or a hub id"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory,
    instead of the checkpoint's own"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """compute dtype, instead of the checkpoint's; the authors evaluated Based in bfloat16"""
    batch_size: int = 8
    """rows per call; affects only the speed"""
    json: Path | None = None
    """write all results to this file"""

    def open(self) -> Opened:
        """Open the checkpoint and its tokenizer."""
        directory = find_directory(self.checkpoint)
        model, params = load_pretrained(directory, dtype=self.dtype)
        tokenizer = find_tokenizer(directory, self.tokenizer, model.config.vocab_size)
        return Opened(model, params, tokenizer, directory)


_SPELLED = "What decides the answers, beside the weights: The code is 12.\n"
_VALUES = 64  # of each parameter in the digest, at least, evenly spaced


def spelling(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a text, which differ if a tokenizer of the same name was trained anew."""
    return tokenizer.encode("ACGT" if tokenizer.name == "dna" else _SPELLED).tolist()


def digest(opened: Opened, **settings: Any) -> str:
    """Return a short name of a run, the same on any machine for equal settings, tokenizers and weights."""
    tokenizer = opened.tokenizer
    settings["model"] = opened.model.config.to_dict()
    settings["tokenizer"] = [tokenizer.vocab_size, tokenizer.eot, spelling(tokenizer)]
    parts = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for leaf in jax.tree.leaves(opened.params):
        values = leaf.reshape(-1)
        step = max(values.size // _VALUES, 1) | 1  # odd, or it would take one column of a matrix
        parts.update(np.asarray(values[::step]).tobytes())
    return parts.hexdigest()[:16]


def as_text(options: Any) -> dict[str, str]:
    """Return the fields that are set, as strings for a results file."""
    return {name: str(value) for name, value in dataclasses.asdict(options).items() if value is not None}


def print_table(table: Table) -> None:
    """Print a table, as wide as the terminal or, without one, as its rows."""
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


def write_json(path: Path | None, content: Any) -> None:
    """Write a result unless `path` is None, creating the file's directory if needed."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def batches(items: list[T], size: int) -> Iterator[tuple[list[T], list[T]]]:
    """Yield batches, and each with its last item repeated up to `size`: one size compiles one program."""
    for first in range(0, len(items), size):
        batch = items[first : first + size]
        yield batch, [*batch, *batch[-1:] * (size - len(batch))]


_SECONDS = 20.0
"""Seconds between lines where there is no terminal."""


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show the progress of work.

    Args:
        total: units of work; None if unknown.
        unit: in the plural, such as "tokens".

    Yields:
        A function to call with the number of units done since the last call.
    """
    done, begin = 0, time.perf_counter()
    last = begin
    columns = (TextColumn(label), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    shown = {"console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    bar = Progress(*columns, TextColumn("{task.description}"), **shown)
    task = bar.add_task("", total=total)

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.perf_counter()
        rate = f"{done:,} {unit}, {done / max(now - begin, 1e-9):,.0f} per second"
        bar.update(task, completed=done, description=rate)
        if not sys.stderr.isatty() and now - last >= _SECONDS:
            last = now
            print(f"{label}: {rate}", file=sys.stderr, flush=True)

    with bar:
        yield advance


class Records:
    """The records so far, in a file or in memory: JSON objects with an `id` and the digest of their `run`.

    Args:
        path: a .jsonl file, created if needed; see `JsonLines` for damaged lines. None for memory only.
        run: digest of everything that affects a record, see `digest`.
        kind: type of the ids.
        settings: description of what `run` depends on, for the error.

    Raises:
        ValueError: the file has records of another run.
    """

    def __init__(self, path: Path | None, run: str, kind: type[int] | type[str], settings: str):
        self.run = run
        self.by_id: dict[Any, dict[str, Any]] = {}
        self._path, self._file = path, None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = JsonLines(path, {"id": kind, "run": str})
            self.by_id = {row["id"]: row for row in self._file.rows}
            is_same = all(row["run"] == run for row in self._file.rows)
            expect(is_same, "records", str(path), f"a new file or one of this run: of the same {settings}")

    def add(self, records: Iterable[dict[str, Any]]) -> int:
        """Append the records that are new, with their run, and return their number."""
        new = [{**record, "run": self.run} for record in records if record["id"] not in self.by_id]
        self.by_id.update({record["id"]: record for record in new})
        if self._file is not None:
            self._file.append(new)
        return len(new)

    def collect(
        self, prog: str, label: str, unit: str, ids: Sequence[Any], batches: Iterable[int]
    ) -> list[dict[str, Any]]:
        """Run the batches and return the records of `ids`; an interrupt ends the process with what is saved.

        Args:
            prog, label, unit: of the command, and of its progress.
            batches: adds the missing records; yields the number of new ones after each batch.
        """
        done = sum(name in self.by_id for name in ids)
        if done:
            print(f"{self._path} has {done:,} of {len(ids):,} {unit}", file=sys.stderr)
        try:
            with progress(label, len(ids) - done, unit) as advance:
                for count in batches:
                    done += count
                    advance(count)
        except KeyboardInterrupt:
            kept = f"; {self._path} has them; run the same command to resume" if self._path else ""
            command.fail(prog, f"interrupted after {done} of {len(ids)} {unit}{kept}", status=130)
        return [self.by_id[name] for name in ids]
