"""Write results as self-contained HTML files: one style, figures as data, tables sorted by a click."""

import base64
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

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
.failed { color: #b00 }
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
    path.write_text(f"{body}\n{script}</html>\n", encoding="utf-8")


def image(png: Path, text: str) -> str:
    """Return the element that shows a PNG file, which becomes part of the page."""
    data = base64.b64encode(png.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a sortable table of cells from `text` and `number`."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def text(value: object) -> str:
    """Return a cell with a name or another short text, on one line."""
    return f"<td>{escape(str(value))}</td>"


def prose(sentences: str) -> str:
    """Return a cell with sentences, on as many lines as they need."""
    return f'<td class="prose">{escape(sentences)}</td>'


def number(value: float | None, form: str) -> str:
    """Return a cell with a number in this format, sorted by its value; empty for None and NaN."""
    if value is None or math.isnan(value):
        return "<td></td>"
    return f'<td data-value="{value}">{value:{form}}</td>'
