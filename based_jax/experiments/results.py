"""results.jsonl of a study: one object per trained model, and the best of each job."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from based_jax.experiments.job import Job

FAILED = "failed"


class Results:
    """Read on opening, appended to as jobs end.

    Raises:
        ValueError: a line within the file, rather than the last one, is no JSON object.
    """

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                self.rows.append(_row(line))
            except ValueError as error:
                if number < len(lines):
                    raise ValueError(
                        f"{path}, line {number}: expected a result, got {line[:60]!r}"
                    ) from error
        self._write()  # without a last line that was cut short

    def has(self, job: Job) -> bool:
        """Whether the job has ended, failed or not."""
        return any(row["job"] == job.name for row in self.rows)

    def of(self, job: Job) -> list[dict[str, Any]]:
        """The job's rows."""
        return [row for row in self.rows if row["job"] == job.name]

    def add(self, job: Job, records: Iterable[Mapping[str, Any]]) -> None:
        """Append what the trainer recorded for `job`."""
        head = {"job": job.name, "family": job.family, "setting": job.setting, **job.facts}
        rows = [{**head, **record, "command": job.line} for record in records]
        self.rows += rows
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)

    def drop_failed(self) -> None:
        """Forget the jobs of which no model has a result, so that they are trained again."""
        fine = {row["job"] for row in self.rows if row["status"] != FAILED}
        self.rows = [row for row in self.rows if row["job"] in fine]
        self._write()

    def _write(self) -> None:
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        if not self.path.exists() or self.path.read_text(encoding="utf-8") != text:
            new = self.path.with_suffix(".part")
            new.write_text(text, encoding="utf-8")
            new.replace(self.path)


def best(rows: Iterable[Mapping[str, Any]], slice_: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    """Each job with its best learning rate, in the order of the rows.

    Args:
        rows: of any number of jobs.
        slice_: rank and report the accuracy of one slice, such as ("num_pairs", "256"), not the overall one.

    Returns:
        for each job with a result, the row of its best learning rate with `accuracy` averaged over the seeds,
        and `seeds`, how many they are. A job whose models all failed is left out.
    """
    jobs: dict[str, dict[float, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["status"] != FAILED:
            jobs.setdefault(row["job"], {}).setdefault(row["learning_rate"], []).append(row)
    chosen = []
    for by_rate in jobs.values():
        means = {rate: fmean(_accuracy(row, slice_) for row in seeds) for rate, seeds in by_rate.items()}
        rate = max(means, key=lambda rate: means[rate])
        chosen.append({**by_rate[rate][0], "accuracy": means[rate], "seeds": len(by_rate[rate])})
    return chosen


def _accuracy(row: Mapping[str, Any], slice_: tuple[str, str] | None) -> float:
    if slice_ is None:
        return row["accuracy"]
    key, value = slice_
    return row["slices"].get(key, {}).get(value, math.nan)


def _row(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or "job" not in row or "status" not in row:
        raise ValueError("not a result")
    return row
