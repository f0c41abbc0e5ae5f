"""Tables of the pages for people, and where they stand."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], words: Collection[int] = (0,)) -> list[str]:
    """Lines of a Markdown table; columns other than those numbered `words` hold numbers, to the right."""
    rules = ["---:"] * len(headings)
    for column in words:
        rules[column] = "---"
    return [f"| {' | '.join(map(str, cells))} |" for cells in (headings, rules, *rows)]


def between_markers(page: str, name: str, text: str) -> str | None:
    """`page` with `text` between ``<!-- NAME -->`` and ``<!-- /NAME -->``; None if it does not have them."""
    before, opening, rest = page.partition(f"<!-- {name} -->")
    _, closing, after = rest.partition(f"<!-- /{name} -->")
    return f"{before}{opening}\n{text}\n{closing}{after}" if closing else None
