"""Keep results of several models in one directory, a JSON file for each, and show them on one page."""

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from html import escape
from pathlib import Path
from typing import Any

from based_jax import html_page, plot
from based_jax.evals.options import write_json
from based_jax.files import read_json
from based_jax.plot import Line, Panel
from based_jax.validate import expect

_NAME = re.compile(r"[\w][\w.\- ]*")


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
    expect(bool(_NAME.fullmatch(name)), "name", name, "letters, digits, spaces, dots, - and _")
    path = directory / f"{name}.json"
    write_json(path, result)
    parts = [*page(results_in(directory, keys))]
    if reason := plot.missing():
        parts.append(f"<p>{escape(reason)}</p>")
    html_page.write_page(directory / "index.html", title, parts)
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


Columns = Mapping[str, tuple[str, str]]
"""Key of a cell -> head of its column, and format of its numbers, or "text" or "prose"."""


def table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """Return a table of the columns that a row has; cells that other rows lack are empty."""
    shown = {key: column for key, column in columns.items() if any(key in row for row in rows)}
    cells = [[_cell(row.get(key), form) for key, (_, form) in shown.items()] for row in rows]
    return html_page.table([head for head, _ in shown.values()], cells)


def _cell(value: Any, form: str) -> str:
    if form in ("text", "prose"):
        return {"text": html_page.text, "prose": html_page.prose}[form]("" if value is None else value)
    return html_page.number(value, form)


def line(name: str, rows: Iterable[Mapping[str, Any]], x: str, y: str) -> Line:
    """Return a line through two entries of rows, without those whose y is None."""
    return Line(name, [(row[x], row[y]) for row in rows if row[y] is not None])


def figure(title: str, panels: Sequence[Panel], columns: int | None = None) -> list[str]:
    """Return the element that shows these panels; none without matplotlib."""
    if plot.missing():
        return []
    with tempfile.TemporaryDirectory() as folder:
        png = Path(folder) / "figure.png"
        plot.draw(title, "", panels, png, columns)
        return [html_page.image(png, title)]
