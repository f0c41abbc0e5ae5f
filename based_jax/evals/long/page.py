"""Write results of long-text questions as JSON, and one page of all models in a directory."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from based_jax import html_page, plot
from based_jax.evals.pages import add_result, figure
from based_jax.html_page import number, text
from based_jax.plot import Line, Panel, byte_size

Summary = dict[str, Any]
"""name, layers, parameters, state, and the keys of `summary`"""

_HOW = (
    "Right first is the share of right answers that the model finds more likely than all wrong ones of the "
    "same kind; chance is what a guess gives. In the text is the share of right answers that the model "
    "writes. Depth is the position of the answer in the text, from 0, its beginning, to 1, its end. A mixer "
    "is switched off by replacing the output of its layers with zeros. Click a column to sort."
)
_KEYS = {"name", "layers", "parameters", "state", "cells", "depths"}


def write_pages(directory: Path, card: Summary) -> Path:
    """Write NAME.json and index.html with all summaries of the directory; return the page's path.

    Raises:
        ValueError: a JSON file in the directory is no summary of this command.
    """
    path, cards = add_result(directory, card, _KEYS)
    parts = [f"<p>{_HOW}</p>", *_figure(cards)]
    for found in cards:
        parts += _section(found)
    if reason := plot.missing():
        parts.append(f"<p>{escape(reason)}</p>")
    page = path.with_name("index.html")
    html_page.write_page(page, "Recall in long texts", parts)
    return page


def finding(card: Summary) -> str:
    """Return the result in a sentence per family."""
    sentences = []
    for family in dict.fromkeys(cell["family"] for cell in card["cells"]):
        whole = [cell for cell in card["cells"] if cell["family"] == family and cell["off"] is None]
        above = [cell for cell in whole if cell["first"] - 2 * cell["first_stderr"] > cell["chance"]]
        longest = max((cell["length"] for cell in above), default=None)
        last = max(whole, key=lambda cell: cell["length"])
        best = (
            f"recalls above chance up to {longest:,} tokens"
            if longest
            else "recalls at no length above chance"
        )
        sentences.append(f"{family}: {best}; {last['first']:.0%} right first at {last['length']:,}.")
    return " ".join(sentences)


def _figure(cards: Sequence[Summary]) -> list[str]:
    families = dict.fromkeys(cell["family"] for card in cards for cell in card["cells"])
    panels = [Panel(family, "tokens", _lines(cards, family), "right first") for family in families]
    first = next(iter(families))
    by_state = [
        Line(card["name"], [(row["bytes"], _first(card, first, row["length"])) for row in card["state"]])
        for card in cards
    ]
    panels.append(
        Panel(f"{first}, by state", "state of a text (bytes)", by_state, "right first", x_tick=byte_size)
    )
    costs = [
        Line(
            card["name"],
            [(cell["length"], cell["decode_ms"]) for cell in _whole(card, first) if cell["decode_ms"]],
        )
        for card in cards
    ]
    panels.append(Panel("cost", "tokens", costs, "ms per generated token", None, y_log=True))
    return figure("Recall in long texts, by length, by state, and its cost", panels, columns=3)


def _whole(card: Summary, family: str) -> list[dict[str, Any]]:
    return [cell for cell in card["cells"] if cell["family"] == family and cell["off"] is None]


def _first(card: Summary, family: str, length: int) -> float:
    return next(cell["first"] for cell in _whole(card, family) if cell["length"] == length)


def _lines(cards: Sequence[Summary], family: str) -> list[Line]:
    """Return a line per model; of a single one also those with a mixer switched off."""
    if len(cards) > 1:
        return [
            Line(c["name"], [(cell["length"], cell["first"]) for cell in _whole(c, family)]) for c in cards
        ]
    cells = [cell for cell in cards[0]["cells"] if cell["family"] == family]
    return [
        Line(
            f"without {off}" if off else cards[0]["name"],
            [(cell["length"], cell["first"]) for cell in cells if cell["off"] == off],
        )
        for off in dict.fromkeys(cell["off"] for cell in cells)
    ]


def _section(card: Summary) -> list[str]:
    bytes_of = {row["length"]: row["bytes"] for row in card["state"]}
    rows = [
        [
            text(cell["family"]),
            text(cell["off"] or "none"),
            number(cell["length"], ",d"),
            *_scores(cell, bytes_of),
        ]
        for cell in card["cells"]
    ]
    heads = ["family", "switched off", "tokens", "right first", "standard error", "chance", "mean rank"]
    heads += ["in the text", "state, bytes", "ms per token read", "ms per token generated"]
    depths = dict.fromkeys(row["depth"] for row in card["depths"])
    whole = [row for row in card["depths"] if row["off"] is None]
    keys = dict.fromkeys((row["family"], row["length"]) for row in whole)
    by_depth = [
        [
            text(family),
            number(length, ",d"),
            *(
                number(row["first"], ".2f")
                for row in whole
                if (row["family"], row["length"]) == (family, length)
            ),
        ]
        for family, length in keys
    ]
    facts = f"{' - '.join(card['layers'])}, {card['parameters']:,} parameters"
    return [
        f"<h2>{escape(card['name'])}</h2><p>{escape(finding(card))} ({escape(facts)})</p>",
        html_page.table(heads, rows),
        "<h3>Right first, by depth</h3>",
        html_page.table(["family", "tokens", *map(str, depths)], by_depth),
    ]


def _scores(cell: dict[str, Any], bytes_of: dict[int, int]) -> list[str]:
    shares = [number(cell[name], ".3f") for name in ("first", "first_stderr", "chance")]
    costs = [number(cell[name], ".3g") for name in ("read_ms", "decode_ms")]
    size = number(bytes_of[cell["length"]], ",d")
    return [*shares, number(cell["rank"], ".1f"), number(cell["match"], ".3f"), size, *costs]
