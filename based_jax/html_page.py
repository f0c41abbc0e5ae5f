"""Write results as self-contained HTML files: one style, figures as data, tables sorted by a click.

Results of several models can share a directory: a JSON file for each, and one page that shows them all.
"""

import base64
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from html import escape
from pathlib import Path
from typing import Any

from based_jax import plot
from based_jax.files import read_json, whole_file, write_json
from based_jax.plot import Line, Panel
from based_jax.validate import expect, expect_directory

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; color: #222 }
body { padding: 0 1rem }
img { max-width: 100%; height: auto }
code { background: #f3f3f3; padding: .1em .3em; overflow-wrap: anywhere }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th { cursor: pointer; position: sticky; top: 0; background: #fff }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left }
td.prose { white-space: normal; min-width: 20em }
details { margin: 1rem 0 }
.wide { overflow-x: auto }
"""

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


def write_page(path: Path, title: str, parts: Iterable[str]) -> None:
    """Write a page with its title as the heading.

    Args:
        parts: HTML elements, one after the other; escape texts in them.
    """
    head = '<!doctype html><html lang="en"><meta charset="utf-8">'
    head += f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    heading = f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
    body = "\n".join([head, heading, *parts])
    script = f"<script>{_SORT}</script>" if "<table" in body else ""
    with whole_file(path) as file:
        file.write(f"{body}\n{script}</html>\n".encode())


def image(png: Path, text: str) -> str:
    """Return the element that shows a PNG file, which becomes part of the page."""
    data = base64.b64encode(png.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'


Columns = Mapping[str, tuple[str, str]]
"""Key of a cell -> head of its column, and format of its numbers, "text" (one line) or "prose"."""


def table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """Return a sortable table of the columns that a row has; cells that other rows lack are empty."""
    shown = {key: column for key, column in columns.items() if any(key in row for row in rows)}
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in shown.values())
    lines = ("".join(_cell(row.get(key), form) for key, (_, form) in shown.items()) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any, form: str) -> str:
    """Return a cell; numbers are sorted by their value, and empty for None and NaN."""
    if form in ("text", "prose"):
        kind = ' class="prose"' if form == "prose" else ""
        return f"<td{kind}>{'' if value is None else escape(str(value))}</td>"
    if value is None or math.isnan(value):
        return "<td></td>"
    return f'<td data-value="{value}">{value:{form}}</td>'


def line(name: str, rows: Iterable[Mapping[str, Any]], x: str, y: str) -> Line:
    """Return a line through two entries of rows, without those whose y is None or missing."""
    return Line(name, [(row[x], row[y]) for row in rows if row.get(y) is not None])


def figure(title: str, panels: Sequence[Panel], columns: int | None = None) -> list[str]:
    """Return the element that shows these panels; none without matplotlib."""
    if plot.missing():
        return []
    with tempfile.TemporaryDirectory() as folder:
        png = Path(folder) / "figure.png"
        plot.draw(title, "", panels, png, columns)
        return [image(png, title)]


_NAME = re.compile(r"[\w][\w.\- ]*")


def expect_result(directory: Path, name: str, keys: Set[str]) -> None:
    """Check, before the work, that `write_result` can write a result of this name; errors are the same."""
    expect(bool(_NAME.fullmatch(name)), "name", name, "letters, digits, spaces, dots, - and _")
    expect_directory("out", directory)
    results_in(directory, keys)


def write_result(
    directory: Path,
    result: Mapping[str, Any],
    keys: Set[str],
    title: str,
    page: Callable[[list[Any]], Iterable[str]],
) -> Path:
    """Write a result as NAME.json, and index.html with all of the directory, which is made if needed.

    Args:
        keys: entries of every result.
        page: the results, in the order of their names -> elements of the page.

    Returns:
        The path of the JSON file.

    Raises:
        ValueError: a name that is no file name, or another JSON file in the directory without the keys.
    """
    name = result["name"]
    path = directory / f"{name}.json"
    expect_result(directory, name, keys)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    parts = [*page(results_in(directory, keys))]
    if reason := plot.missing():
        parts.append(f"<p>{escape(reason)}</p>")
    write_page(directory / "index.html", title, parts)
    return path


def results_in(directory: Path, keys: Set[str]) -> list[Any]:
    """Read all results of a directory, in the order of their names; each must have these keys."""
    results = []
    for path in sorted(directory.glob("*.json")):
        result = read_json(path)
        is_result = isinstance(result, dict) and result.keys() >= keys
        expect(is_result, "directory", str(path), f"only files with {', '.join(sorted(keys))}")
        results.append(result)
    return results
