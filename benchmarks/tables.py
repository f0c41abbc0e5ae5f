"""Write the tables of every report, in Markdown: for a page, and for a terminal."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from based_jax import markdown

Report = dict[str, Any]

MISSING = "\N{EN DASH}"
"""A cell without a number."""

MIN_WIDTH = 160
"""Width of the widest table; a narrower terminal scrolls or wraps, and numbers are not split."""

PASS_TITLES = {"forward": "forward", "forward_backward": "fwd+bwd"}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table: the first `left` columns are text, the others numbers, on the right."""
    return "\n".join(markdown.table(columns, rows, range(left)))


def blocks(*parts: str) -> str:
    """Join the parts of a report that are not empty."""
    return "\n\n".join(filter(None, parts))


def sentence(parts: Sequence[str]) -> str:
    """Join parts of a sentence; empty without any."""
    return "; ".join(parts) + "." if parts else ""


def not_measured(rows: Iterable[dict[str, Any]], label: Callable[[dict[str, Any]], str]) -> str:
    """Name each row without a time, with the reason, which is too wide for a table's cells."""
    return sentence(
        [
            f"{label(row)} {row['status']}" + (f": {row['reason']}" if row["reason"] else "")
            for row in rows
            if row["seconds"] is None
        ]
    )


def ran_on(report: Report, *packages: str) -> str:
    """Return the processor, the versions of packages and the date of a report."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {machine[name] or 'not installed'}" for name in packages)
    parts = [f"{machine['cpu']}, {machine['cores']} cores", versions, machine["date"][:10]]
    return "; ".join(filter(None, parts))


def show(title: str, text: str, notes: Iterable[str] = ()) -> None:
    """Print tables and notes on a terminal."""
    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    console.print(Markdown(f"# {title}\n\n{text}"))
    for line in notes:
        console.print(line)


def significant(value: float) -> str:
    """Format at least three digits, never with an exponent."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def power(exponent: float | None) -> str:
    """Format growth with the length N, or a dash for None."""
    return "-" if exponent is None else f"N^{exponent:.2f}"


def milliseconds(seconds: float | None) -> str:
    """Format seconds as milliseconds, or `MISSING` for None."""
    return MISSING if seconds is None else significant(1e3 * seconds)
