"""Store a study's results.jsonl: one object per trained model; select the best of each job."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from based_jax.experiments.job import Job
from based_jax.files import read_json_lines

FAILED = "failed"

Row = dict[str, Any]
"""One object of a JSONL file, such as a result."""

Rows = Sequence[Mapping[str, Any]]
"""Read-only objects of a JSONL file."""


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return records as the text of a JSONL file."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write records as a JSONL file."""
    path.write_text(json_lines(rows), encoding="utf-8")


def read(path: Path) -> list[Row]:
    """Return the records of a JSONL file; none if there is no such file."""
    return read_json_lines(path) if path.exists() else []


class Results:
    """A study's records, read on opening and appended to as jobs end.

    Raises:
        ValueError: a line other than the last one is not a JSON object.
    """

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[Row] = []
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and "job" in row and "status" in row:
                self.rows.append(row)
            elif number < len(lines):
                raise ValueError(f"{path}, line {number}: expected a result, got {line[:60]!r}")
        self._write()  # drops a truncated last line

    def has(self, job: Job) -> bool:
        """Return whether the job has ended, failed or not."""
        return any(row["job"] == job.name for row in self.rows)

    def of(self, job: Job) -> list[Row]:
        """Return the job's rows."""
        return [row for row in self.rows if row["job"] == job.name]

    def add(self, job: Job, records: Iterable[Mapping[str, Any]]) -> None:
        """Append the trainer's records of `job`."""
        head = {"job": job.name, "family": job.family, "setting": job.setting, **job.facts}
        rows = [{**head, **record, "command": job.line} for record in records]
        self.rows += rows
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_lines(rows))

    def drop_failed(self) -> None:
        """Drop the jobs without any result, so that they are trained again."""
        fine = {row["job"] for row in self.rows if row["status"] != FAILED}
        self.rows = [row for row in self.rows if row["job"] in fine]
        self._write()

    def _write(self) -> None:
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        if not self.path.exists() or self.path.read_text(encoding="utf-8") != text:
            new = self.path.with_suffix(".part")
            new.write_text(text, encoding="utf-8")
            new.replace(self.path)


def best(rows: Iterable[Mapping[str, Any]], slice_: tuple[str, str] | None = None) -> list[Row]:
    """Return each job with its best learning rate, in the order of the rows.

    Args:
        rows: of any number of jobs.
        slice_: rank and report the accuracy of one slice, such as ("num_pairs", "256"), not the overall one.

    Returns:
        the rows of the best learning rates with `accuracy` averaged over the `seeds`, and the number of
        seeds. A job whose models all failed is left out.
    """
    jobs: dict[str, dict[float, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["status"] != FAILED:
            jobs.setdefault(row["job"], {}).setdefault(row["learning_rate"], []).append(row)
    chosen, (key, value) = [], slice_ or ("", "")

    def accuracy(row: Mapping[str, Any]) -> float:
        return row["slices"].get(key, {}).get(value, math.nan) if slice_ else row["accuracy"]

    for by_rate in jobs.values():
        means = {rate: fmean(map(accuracy, seeds)) for rate, seeds in by_rate.items()}
        rate = max(means, key=lambda rate: means[rate])
        chosen.append({**by_rate[rate][0], "accuracy": means[rate], "seeds": len(by_rate[rate])})
    return chosen
