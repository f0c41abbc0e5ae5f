"""Store a study's results.jsonl: one object per trained model; select the best of each job."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from based_jax.experiments.job import Job
from based_jax.files import JsonLines, read_json_lines, write_lines

FAILED = "failed"

Row = dict[str, Any]
"""One object of a JSONL file, such as a result."""

Rows = Sequence[Mapping[str, Any]]
"""Read-only objects of a JSONL file."""


def read(path: Path) -> list[Row]:
    """Return the records of a JSONL file; none if there is no such file."""
    return read_json_lines(path) if path.exists() else []


class Results(JsonLines):
    """A study's records, read on opening and appended to as jobs end; see `JsonLines` for damaged lines."""

    def __init__(self, path: Path):
        super().__init__(path, {"job": str, "status": str})

    def of(self, job: Job) -> list[Row]:
        """Return the job's rows."""
        return [row for row in self.rows if row["job"] == job.name]

    def has(self, job: Job) -> bool:
        """Return whether the job has ended, failed or not."""
        return bool(self.of(job))

    def add(self, job: Job, records: Iterable[Mapping[str, Any]]) -> None:
        """Append the trainer's records of `job`."""
        head = {"job": job.name, "family": job.family, "setting": job.setting, **job.facts}
        self.append({**head, **record, "command": job.line} for record in records)

    def drop_failed(self) -> None:
        """Drop the jobs without any result, so that they are trained again."""
        fine = {row["job"] for row in self.rows if row["status"] != FAILED}
        self.rows = [row for row in self.rows if row["job"] in fine]
        write_lines(self.path, self.rows)


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
