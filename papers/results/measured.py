"""Collect our values of published cells: computed here, or read from the results of commands."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from based_jax.models import param_count, presets
from based_jax.published.tables import Row, Table, names, preset_of, run_of, table, training_flops
from based_jax.validate import expect
from papers.results.claims import recomputed
from papers.results.evaluations import Evaluation, read_evaluations
from papers.results.states import state_bytes
from papers.results.studies import Run, cell_of, read_runs

Cells = dict[tuple[int, str], float]
"""Our values by row number, from 0, and column."""

LENGTH = 2048
"""tokens of the step whose operations Zoology counts"""


class Results:
    """A directory of results: evaluations in `evals`, studies anywhere below."""

    def __init__(self, directory: Path):
        expect(directory.is_dir(), "results", str(directory), "an existing directory")
        self.directory = directory
        self.evaluations = read_evaluations(directory / "evals")

    def runs(self, table: Table) -> list[Run]:
        """Return the runs of the study that draws the table's figure."""
        return read_runs(self.directory, table.name)

    def evaluations_of(self, table: Table) -> list[Evaluation]:
        """Return the evaluations that fill a cell of the table."""
        whose = {run_of(table, row) for row in table.rows}
        known = (found for found in self.evaluations if table.name in found.tables and found.run in whose)
        return [found for found in known if not found.cells.keys().isdisjoint(table.columns)]

    def unused(self) -> list[Evaluation]:
        """Return the evaluations that fill no cell of any table."""
        used = [found.path for name in names() for found in self.evaluations_of(table(name))]
        return [found for found in self.evaluations if found.path not in used]


def measured(table: Table, results: Results) -> Cells:
    """Return every cell of a table for which we have a value."""
    cells = {
        (index, column): value
        for column, compute in _COMPUTED.items()
        if column in table.columns
        for index, row in enumerate(table.rows)
        if (value := compute(table, row)) is not None
    }
    for run in results.runs(table):
        if run.scale == "paper":
            cells |= _from_run(table, run)
    for found in results.evaluations_of(table):
        for index, row in enumerate(table.rows):
            if run_of(table, row) == found.run and found.where.items() <= row.items():
                shared = found.cells.keys() & set(table.columns)
                cells |= {(index, name): found.cells[name] for name in shared}
    return cells


def _from_run(table: Table, run: Run) -> Cells:
    cells = {}
    for row in run.rows:
        key, column = cell_of(table.name, row)
        for index, printed in enumerate(table.rows):
            if key.items() <= printed.items() and column in table.columns:
                cells[index, column] = row["accuracy"]
    return cells


@cache
def _parameters(preset: str) -> int:
    return param_count(presets.get(preset))


def _size(table: Table, row: Row) -> int | None:
    """Return it only where the models come first: the paper's other tables repeat them."""
    preset = preset_of(table, row) if table.name in ("based_table_1", "based_table_4") else None
    return None if preset is None else _parameters(preset)


def _millions(table: Table, row: Row) -> float | None:
    preset = preset_of(table, row)
    return None if preset is None else _parameters(preset) / 1e6


def _tflops(table: Table, row: Row) -> float | None:
    preset = preset_of(table, row)
    flops = None if preset is None else training_flops(presets.get(preset), LENGTH)
    return None if flops is None else flops / 1e12


_COMPUTED: Mapping[str, Callable[[Table, Row], float | None]] = {
    "size": _size,
    "parameters": _millions,
    "tflops": _tflops,
    "state_bytes": lambda table, row: state_bytes(row) if table.name == "zoology_states" else None,
    "printed": lambda table, row: recomputed().get(str(row["claim"])),
}
"""Values that need no run, by column."""
