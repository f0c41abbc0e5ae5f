"""The papers' groups of tasks: their columns, and a table of our row above the paper's."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rich.table import Table

from based_jax.files import read_json
from based_jax.published import table as published_table


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


def suite_rows(suite: Suite, shots: int) -> list[dict[str, Any]]:
    """Return the paper's rows; for SuperGLUE those with the same number of examples in the prompt."""
    rows = published_table("based", suite.table).rows
    return [dict(row) for row in rows if row.get("shots", shots) == shots]


def suite_table(suite: Suite, results: Mapping[str, Any], name: str, shots: int) -> Table:
    """Tabulate our row, then the paper's."""
    paper = published_table("based", suite.table)
    table = Table(title=f"{paper.title}; percent, ours above {paper.source}", title_justify="left")
    names = [column.name for column in suite.columns]
    leading = [column for column in paper.columns if column not in (*names, "average")]
    for column in leading:
        table.add_column(column)
    for title in (*(column.title for column in suite.columns), "average"):
        table.add_column(title, justify="right")
    ours = read_columns(suite, results["results"])
    cells = []
    for column in suite.columns:
        percent = 1 if column.metric == "perplexity" else 100
        error = results["results"][column.task].get(f"{column.metric}_stderr,none")
        shown = f"{ours[column.name]:.2f}"
        cells.append(f"{shown} ± {percent * error:.2f}" if isinstance(error, float) else shown)
    heads = [{"model": name, "shots": str(shots)}.get(column, "") for column in leading]
    table.add_row(*heads, *cells, f"{ours['average']:.2f}", end_section=True)
    for row in suite_rows(suite, shots):
        numbers = [f"{row[column]:.2f}" for column in (*names, "average")]
        table.add_row(*(str(row[column]) for column in leading), *numbers)
    return table
