"""Markdown tables, and their positions in pages."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], words: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a Markdown table; columns not in `words` are numbers, aligned right."""
    rules = ["---:"] * len(headings)
    for column in words:
        rules[column] = "---"
    return [f"| {' | '.join(map(str, cells))} |" for cells in (headings, rules, *rows)]


def between_markers(page: str, name: str, text: str) -> str | None:
    """Return `page` with `text` between ``<!-- NAME -->`` and ``<!-- /NAME -->``; None without these."""
    before, opening, rest = page.partition(f"<!-- {name} -->")
    _, closing, after = rest.partition(f"<!-- /{name} -->")
    return f"{before}{opening}\n{text}\n{closing}{after}" if closing else None
