"""Write tables in Markdown, and insert them between two comments with the benchmark's name."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from based_jax.validate import expect

MISSING = "\N{EN DASH}"
"""A cell without a number."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table: the first `left` columns are text, the others numbers, on the right."""
    rule = "|" + "---|" * left + "---:|" * (len(columns) - left)
    head, *body = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head, rule, *body])


def not_measured(rows: Iterable[dict[str, Any]], label: Callable[[dict[str, Any]], str]) -> list[str]:
    """Return a line for each row without a time, with the reason, which is too wide for a table's cells."""
    return [
        f"{label(row)} {row['status']}" + (f": {row['reason']}" if row["reason"] else "")
        for row in rows
        if row["seconds"] is None
    ]


def insert(page: str, name: str, table: str | None) -> str:
    """Insert `table` between the lines `<!-- name -->` and `<!-- /name -->`; with None only check for them.

    Raises:
        ValueError: the page lacks one of the comments, or has them in the wrong order.
    """
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(closing)
    expect(bool(begin and end), "--markdown", "", f"a file with the lines {opening} and {closing}")
    return page if table is None else "".join((before, begin, "\n", table, end, after))
