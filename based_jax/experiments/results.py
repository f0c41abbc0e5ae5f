"""Store a study's results.jsonl, one object per trained model; select each job's best, and make lines."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from based_jax.experiments.job import Job
from based_jax.files import JsonLines, read_json_lines, write_lines
from based_jax.plot import Bars, Line, byte_size

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
        """Add the trainer's records of `job`: all of them, or none if they cannot be written."""
        head = {"job": job.name, "family": job.family, "setting": job.setting, **job.facts}
        rows = [*self.rows, *({**head, **record, "command": job.line} for record in records)]
        write_lines(self.path, rows)
        self.rows = rows

    def drop_failed(self) -> None:
        """Drop the jobs without any result, so that they are trained again."""
        fine = {row["job"] for row in self.rows if row["status"] != FAILED}
        self.rows = [row for row in self.rows if row["job"] in fine]
        write_lines(self.path, self.rows)

    def move_replaced(self, jobs: Iterable[Job], path: Path) -> int:
        """Move the rows of jobs that have other flags by now to the end of `path`; return their number."""
        now: dict[tuple[Any, Any], str] = {(job.family, job.setting): job.name for job in jobs}

        def is_old(row: Row) -> bool:
            return now.get((row.get("family"), row.get("setting")), row["job"]) != row["job"]

        old = [row for row in self.rows if is_old(row)]
        if old:
            write_lines(path, [*read(path), *old])
            self.rows = [row for row in self.rows if not is_old(row)]
            write_lines(self.path, self.rows)
        return len(old)


def best(rows: Iterable[Mapping[str, Any]], slice_: tuple[str, str] | None = None) -> list[Row]:
    """Return each job with its best learning rate of those with most results, in the order of the rows.

    Args:
        rows: of any number of jobs.
        slice_: rank and report the accuracy of one slice, such as ("num_pairs", "256"), not the overall one.

    Returns:
        the rows of the best learning rates with `accuracy` and `slices` averaged over the seeds; `seed` lists
        them and `seeds` is their number. A job whose models all failed is left out.
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
        rate = max(means, key=lambda rate: (len(by_rate[rate]), means[rate]))
        seeds = by_rate[rate]
        mean = {"accuracy": means[rate], "slices": _mean_slices([row.get("slices") or {} for row in seeds])}
        numbers = ", ".join(str(row.get("seed")) for row in seeds)
        chosen.append({**seeds[0], **mean, "seed": numbers, "seeds": len(seeds)})
    return chosen


def _mean_slices(slices: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Average the accuracies of models that were tested with the same data."""
    first, *_ = slices
    return {key: {value: fmean(each[key][value] for each in slices) for value in first[key]} for key in first}


STATE_AXIS: Mapping[str, Any] = {
    "x_label": "state at the longest test by the papers' formulas (bytes)",
    "x_tick": byte_size,
}
"""Options of panels over `state_bytes`."""


def lines(
    rows: Iterable[Mapping[str, Any]],
    x: Callable[[Mapping[str, Any]], float | None],
    *,
    frontier: bool = False,
) -> list[Line]:
    """Return the best rows as one line per family, without rows that have no x (mixers without a state)."""
    families: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (value := x(row)) is not None:
            families.setdefault(row["family"], []).append((value, row["accuracy"]))
    return [Line(family, points, frontier=frontier) for family, points in families.items()]


def published(points: Mapping[str, Sequence[tuple[float, float]]], *, frontier: bool = False) -> list[Line]:
    """Return a paper's points as lines."""
    return [Line(family, values, published=True, frontier=frontier) for family, values in points.items()]


def state_bytes(row: Mapping[str, Any]) -> float | None:
    """Return the bytes of the state at the longest sequence, in float32, by the papers' formulas, or None."""
    return row["state_size"] and 4 * row["state_size"]


def bars(rows: Iterable[Mapping[str, Any]], order: Sequence[str]) -> list[Bars]:
    """Return a panel for each setting: the accuracy of each family, those in `order` first."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row["setting"], {})[row["family"]] = row["accuracy"]

    def panel(title: str, values: Mapping[str, float]) -> Bars:
        names = sorted(values, key=lambda name: order.index(name) if name in order else len(order))
        values = {name: values[name] for name in names}
        return Bars(title.replace("_", " "), "accuracy", values, "", (0.0, 1.0))

    return [panel(title, values) for title, values in found.items()]
