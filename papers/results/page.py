"""Write papers/results/README.md: every published table next to our values."""

from collections.abc import Sequence
from pathlib import Path

from based_jax import markdown
from based_jax.published.tables import Column, Table, names, shared_columns, table
from papers.results.measured import Cells, Results, measured
from papers.results.states import held_bytes
from papers.results.studies import STUDIES, UNPRINTED, Run, runs_of

_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
_SECTIONS = {"claims": "Claims", "based": "Based", "zoology": "Zoology", "hyperattention": "HyperAttention"}
"""Heading by the beginning of a table's name."""


def page(results: Results) -> str:
    """Return the page, with our values from these results."""
    parts = [_HEAD]
    for beginning, title in _SECTIONS.items():
        parts.append(f"## {title}")
        for name in names():
            if name.startswith(beginning):
                parts += _table(table(name), results)
    parts += ["## Conv-Basis", "The paper prints no table of results, and no numbers in its figures."]
    parts += _unprinted(results.directory)
    lines = [f"- {_meaning(name, column)}" for name, column in shared_columns().items()]
    return "\n\n".join([*parts, "## Columns", "\n".join(lines)]) + "\n"


def _table(found: Table, results: Results) -> list[str]:
    cells = measured(found, results)
    parts = [
        f"### {found.source}",
        f"{found.title}: `{found.name}`. {_legend(found)}".rstrip(),
        _beside(found, cells),
        *(f"- {note}" for note in found.notes),
    ]
    ours = results.evaluations_of(found)
    used = [f"- {x.run}, {', '.join(x.cells)}: `{x.path.name}`, {x.setting}." for x in ours]
    if used:
        parts.append("\n".join(["Ours:", "", *used]))
    parts += [part for run in results.runs(found) for part in _run(run, results.directory)]
    if found.measure:
        parts.append("\n".join(["```", *found.measure, "```"]))
    return _join_lists(parts)


def _beside(found: Table, cells: Cells) -> str:
    """Return the table, with a column of ours after each one for which we have values."""
    ours = {column for _, column in cells}
    head, words, rows = [], [], []
    for column, about in found.about.items():
        if not any(isinstance(row[column], int | float) for row in found.rows):
            words.append(len(head))
        head.append(column + _ARROWS[about.better])
        if column in ours:
            head.append("recomputed" if found.name == "claims" else "ours")
        if _is_counted(found, column):
            head.append("held")
    for index, printed in enumerate(found.printed):
        row = []
        for column, text in printed.items():
            row.append(text)
            if column in ours:
                value = cells.get((index, column))
                row.append("-" if value is None else _like(value, text))
            if _is_counted(found, column):
                held = held_bytes(found.rows[index])
                row.append("-" if held is None else f"{held:,}")
        rows.append(row)
    return "\n".join(markdown.table(head, rows, words))


def _is_counted(found: Table, column: str) -> bool:
    """Return whether the column counts states of our mixers, next to which their memory is shown."""
    return (found.name, column) == ("zoology_states", "state_bytes")


def _like(value: float, printed: str) -> str:
    """Format our value with as many decimals as the published one, at least one."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{max(len(printed.partition('.')[2]), 1)}f}"


def _legend(found: Table) -> str:
    """Explain the columns that no other table has."""
    shared = shared_columns()
    own = [_meaning(name, about) for name, about in found.about.items() if shared.get(name) != about]
    return f"Columns of this table only: {'; '.join(own)}." if own else ""


def _meaning(name: str, column: Column) -> str:
    return f"`{name}` {column.about}" + (f" ({column.unit})" if column.unit else "")


def _run(run: Run, directory: Path) -> list[str]:
    """Describe a run of the study at another scale than the papers': its own numbers."""
    if run.scale == "paper":
        return []
    where = run.path.relative_to(directory)
    return [
        f"Our run has another scale, `--scale {run.scale}` (`{where}`), so its cells are not comparable. "
        f"{run.study.about[run.scale]}:",
        _rows(run),
    ]


def _rows(run: Run) -> str:
    """Return a table with the best learning rate of each job."""
    rows = []
    for row in run.rows:
        state = f"{4 * row['state_size']:,}" if row["state_size"] else "-"
        held = f"{row['state_bytes']:,}" if row.get("state_bytes") else "-"
        rows.append([row["family"], row["setting"], state, held, f"{row['accuracy']:.3f}"])
    return "\n".join(
        markdown.table(["model", "setting", "state_bytes", "held", "accuracy"], rows, words=(0, 1))
    )


def _unprinted(directory: Path) -> list[str]:
    """Describe the figures of synthetic tasks that print no numbers, with our runs of their studies."""
    parts = [
        "## Figures without printed numbers",
        "[Studies of recall](../zoology/recall.md) discusses our runs.",
    ]
    for figure, (study, shows) in UNPRINTED.items():
        parts += [f"### {figure}", shows]
        for run in runs_of(directory, study) if study not in STUDIES.values() else ():
            where = run.path.relative_to(directory)
            parts += [f"Ours, `--scale {run.scale}` (`{where}`). {run.study.about[run.scale]}:", _rows(run)]
        command = f"based-jax experiments {study.replace('_', '-')} --scale paper"
        parts.append(f"```\n{command} --out results/{study.replace('_', '/', 1)}-paper\n```")
    return parts


def _join_lists(parts: Sequence[str]) -> list[str]:
    """Put items of one list on adjacent lines, without empty lines between them."""
    joined: list[str] = []
    for part in parts:
        if part.startswith("- ") and joined and joined[-1].startswith("- "):
            joined[-1] += f"\n{part}"
        else:
            joined.append(part)
    return joined


_HEAD = """\
# Published results

Written by `python -m papers.results`. This page has every table of results in the papers, and compares our
values with the published ones. The published values come from the data files in `based_jax/published/data`.
In Python:

```python
from based_jax.published import table

found = table("based", 2)
assert found.row(model="Based", size="363m/10b")["piqa"] == 64.42
assert found.about["lambada_ppl"].better == "lower"
```

- A column "ours" follows each column for which we have a value; "-" is a cell that was not run. A table
  without such a column has no value of ours yet: most need a GPU, or data and checkpoints from the network.
- These values are computed when the page is written. `size`, `parameters`: `bj.param_count` of the preset
  ([presets](../../docs/mixers.md#presets)). `tflops`: the papers' formulas on the preset. `state_bytes`:
  `state_size` of our mixers, four bytes for each float of the papers' formulas. `held`: the bytes that
  `init_state` allocates.
- All other values come from files. An evaluation's `--json results/evals/NAME.json` fills the cells of its
  checkpoint, which the last component of the hub id or directory identifies. A study below `results` fills
  the cells of its figure if it ran at `--scale paper`. `python -m papers.results` then writes this page
  again.
- The commands below a table measure one of its rows. The commands for the other rows differ in the
  checkpoint, preset or task. [Evaluation](../../docs/evaluation.md) explains what they need.
- The [end](#columns) of the page explains columns that several tables have. Arrows show which direction is
  better."""
