"""Define the Based paper's two groups of lm-eval tasks, as columns of its Tables 2 and 3."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from based_jax.files import read_json


class Column(NamedTuple):
    """A metric of lm-eval and its column in the paper's table."""

    name: str
    """name of the column"""
    task: str
    metric: str
    title: str


class Suite(NamedTuple):
    """A group of tasks that are averaged."""

    table: int
    """number of the table in the Based paper"""
    columns: tuple[Column, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return lm-eval's names of the tasks."""
        return tuple(dict.fromkeys(column.task for column in self.columns))


SUITES = {
    name: Suite(suite["table"], tuple(Column(**column) for column in suite["columns"]))
    for name, suite in read_json(Path(__file__).with_name("suites.json")).items()
}


def read_columns(suite: Suite, results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Compute a row of the paper's table from lm-eval's results by task: percent, except perplexities."""
    row = {}
    for column in suite.columns:
        value = float(results[column.task][f"{column.metric},none"])
        row[column.name] = value if column.metric == "perplexity" else 100 * value
    return {**row, "average": average(suite, row)}


def average(suite: Suite, row: Mapping[str, float]) -> float:
    """Return the mean over tasks of each task's mean percentage."""
    percentages = (column for column in suite.columns if column.metric != "perplexity")
    tasks = groupby(percentages, lambda column: column.task)  # a task's columns are adjacent
    return mean(mean(row[column.name] for column in columns) for _, columns in tasks)
