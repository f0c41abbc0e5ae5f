"""Summarize records of long-text questions as JSON, and write one page of all models in a directory.

    cells   list of {"off", "family", "length", "questions", "match", "first", "first_stderr", "chance",
            "rank", "read_ms", "decode_ms"}; off is the mixer that is switched off, or null
    depths  list of {"off", "family", "length", "depth", "first", "match"}

match   share of the right answers in the generated text
first   share of the right answers that are more likely than all wrong ones; chance is what a guess gives
rank    mean rank of a right answer among the wrong ones
read_ms, decode_ms   milliseconds for a token of a prompt and for a generated one; null if only calls that
            compiled were timed
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from based_jax import html_page, plot
from based_jax.evals.pages import add_result, figure
from based_jax.html_page import number, text
from based_jax.plot import Line, Panel, byte_size

Record = Mapping[str, Any]

_CELL = ("off", "family", "length")


def summarize(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Return the cells and the depths of this module, in the order of the records."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in _CELL), []).append(record)
    cells, depths = [], []
    for key, group in groups.items():
        cell = dict(zip(_CELL, key, strict=True))
        first = _mean(group, "first")
        found = {name: _mean(group, name) for name in ("match", "first", "chance", "rank")}
        found["first_stderr"] = math.sqrt(first * (1 - first) / len(group))
        times = {name: _median(group, name) for name in ("read_ms", "decode_ms")}
        cells.append({**cell, "questions": len(group), **found, **times})
        for depth in sorted({record["depth"] for record in group}):
            at_depth = [record for record in group if record["depth"] == depth]
            shares = {name: _mean(at_depth, name) for name in ("first", "match")}
            depths.append({**cell, "depth": depth, **shares})
    return {"cells": cells, "depths": depths}


def _mean(records: Sequence[Record], name: str) -> float:
    return float(np.mean([record[name] for record in records]))


def _median(records: Sequence[Record], name: str) -> float | None:
    known = [record[name] for record in records if record[name] is not None]
    return float(np.median(known)) if known else None


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
