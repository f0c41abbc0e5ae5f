"""Write the results as one self-contained HTML file: the figure and sortable tables."""

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from based_jax.experiments.results import FAILED, Rows

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; color: #222 }
body { padding: 0 1rem }
img { max-width: 100%; height: auto }
code { background: #f3f3f3; padding: .1em .3em; overflow-wrap: anywhere }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th { cursor: pointer; position: sticky; top: 0; background: #fff }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left }
.failed { color: #b00 }
details { margin: 1rem 0 }
.wide { overflow-x: auto }
"""

_STATES = (
    "States are of one sequence of the longest test: four bytes for each float of the papers' formulas, "
    "as in the figure, and what the model's <code>init_state</code> holds."
)

_SORT = """
for (const head of document.querySelectorAll("th")) head.onclick = () => {
  const column = head.cellIndex, body = head.closest("table").tBodies[0], up = head.dataset.up !== "1";
  head.dataset.up = up ? "1" : "0";
  const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const number = text => text === "" ? -Infinity : Number(text);
  const order = (a, b) => isNaN(number(a)) || isNaN(number(b)) ? a.localeCompare(b) : number(a) - number(b);
  const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(value(a), value(b)));
  body.append(...rows);
};
"""


def write(
    path: Path, title: str, sentences: Sequence[str], figure: Path | None, best: Rows, rows: Rows
) -> None:
    """Write the page: HTML sentences, the PNG, a table of the `best` learning rates and one of all rows."""
    image = ""
    if figure is not None:
        data = base64.b64encode(figure.read_bytes()).decode()
        image = f'<img alt="{escape(title)}" src="data:image/png;base64,{data}">'
    slices = _slices(best)
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>",
        *[f"<p>{sentence}</p>" for sentence in sentences],
        image,
        "<h2>Each model with its best learning rate</h2>",
        f"<p>{_STATES}</p>",
        _table(best, slices),
        "<details><summary>Every learning rate and seed</summary>",
        _table(rows, slices),
        f"</details><script>{_SORT}</script></html>",
    ]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


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
    lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
    lines += ["".join(_cells(row, slices)) for row in rows]
    head, *body = [f"<tr>{line}</tr>" for line in lines]
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(body)}</tbody></table></div>'


def _cells(row: Mapping[str, Any], slices: Sequence[tuple[str, str]]) -> list[str]:
    size = row.get("state_size")
    cells = [_text(row["family"]), _text(row["setting"]), _number(row.get("parameters"), ",d")]
    cells += [_number(size and 4 * size, ",d"), _number(row.get("state_bytes"), ",d")]
    cells += [_number(row.get("accuracy"), ".4f")]
    of_slices = row.get("slices") or {}
    cells += [_number(of_slices.get(key, {}).get(value), ".3f") for key, value in slices]
    cells += [_number(row.get("learning_rate"), ".3g"), _text(row.get("seed", ""))]
    cells += [_number(row.get("epochs"), "g"), _number(row.get("seconds"), ".0f")]
    status = escape(str(row["status"]))
    if row["status"] == FAILED:
        status = f'<span class="failed" title="{escape(str(row.get("error", "")))}">{status}</span>'
    return [*cells, f"<td>{status}</td>"]


def _text(value: Any) -> str:
    return f"<td>{escape(str(value))}</td>"


def _number(value: float | None, form: str) -> str:
    if value is None or math.isnan(value):
        return "<td></td>"
    return f'<td data-value="{value}">{value:{form}}</td>'
