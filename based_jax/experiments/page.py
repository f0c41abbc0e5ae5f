"""Write the results as one self-contained HTML file: the figure and sortable tables."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from based_jax import html_page
from based_jax.experiments.results import FAILED, Rows
from based_jax.html_page import number, text

_STATES = (
    "States are of one sequence of the longest test: four bytes for each float of the papers' formulas, and "
    "what the model's <code>init_state</code> holds."
)


def write(
    path: Path, title: str, sentences: Sequence[str], figure: Path | None, best: Rows, rows: Rows
) -> None:
    """Write the page: HTML sentences, the PNG, a table of the `best` learning rates and one of all rows."""
    slices = _slices(best)
    parts = [
        *[f"<p>{sentence}</p>" for sentence in sentences],
        "" if figure is None else html_page.image(figure, title),
        "<h2>Each model with its best learning rate</h2>",
        f"<p>{_STATES}</p>",
        _table(best, slices),
        "<details><summary>Every learning rate and seed</summary>",
        _table(rows, slices),
        "</details>",
    ]
    html_page.write_page(path, title, parts)


def _slices(rows: Rows) -> list[tuple[str, str]]:
    """Return the slices that distinguish results: numbers of pairs, or lengths if the pairs are all equal."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for key, values in (row.get("slices") or {}).items():
            found.setdefault(key, {}).update(dict.fromkeys(values))
    key = "num_pairs" if "num_pairs" in found else next(iter(found), "")
    return [(key, value) for value in sorted(found.get(key, {}), key=float)]


def _table(rows: Rows, slices: Sequence[tuple[str, str]]) -> str:
    heads = ["family", "setting", "parameters", "state, bytes", "held, bytes", "accuracy"]
    heads += [f"{value} pairs" if key == "num_pairs" else f"{key} {value}" for key, value in slices]
    heads += ["learning rate", "seed", "epochs", "seconds", "status"]
    return html_page.table(heads, [_cells(row, slices) for row in rows])


def _cells(row: Mapping[str, Any], slices: Sequence[tuple[str, str]]) -> list[str]:
    size = row.get("state_size")
    cells = [text(row["family"]), text(row["setting"]), number(row.get("parameters"), ",d")]
    cells += [number(size and 4 * size, ",d"), number(row.get("state_bytes"), ",d")]
    cells += [number(row.get("accuracy"), ".4f")]
    of_slices = row.get("slices") or {}
    cells += [number(of_slices.get(key, {}).get(value), ".3f") for key, value in slices]
    cells += [number(row.get("learning_rate"), ".3g"), text(row.get("seed", ""))]
    cells += [number(row.get("epochs"), "g"), number(row.get("seconds"), ".0f")]
    status = escape(str(row["status"]))
    if row["status"] == FAILED:
        status = f'<span class="failed" title="{escape(str(row.get("error", "")))}">{status}</span>'
    return [*cells, f"<td>{status}</td>"]
