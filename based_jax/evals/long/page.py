"""Summarize records of long-text questions as JSON, and write one page of all models in a directory.

    cells   list of {"off", "family", "length", "questions", "match", "first", "first_stderr", "chance",
            "rank", "read_ms", "decode_ms"}; off is the mixer that is switched off, or null
    depths  list of {"off", "family", "length", "depth", "questions", "first", "match"}

match   share of the right answers in the generated text
first   share of the right answers that are more likely than all wrong ones; chance is what a guess gives
rank    mean rank of a right answer among the wrong ones
read_ms, decode_ms   median milliseconds for a token of a prompt, and for a generated one of a whole batch;
            null if every batch compiled
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from based_jax.html_page import Columns, figure, line, table, write_result
from based_jax.plot import Line, Panel, byte_size

_CELL = ("off", "family", "length")


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the cells and the depths of this module, in the order of the records."""
    cells = _means(records, _CELL, ("match", "first", "chance", "rank"), ("read_ms", "decode_ms"))
    for cell in cells:
        chosen = [record["first"] for record in records if all(record[key] == cell[key] for key in _CELL)]
        cell["first_stderr"] = float(np.std(chosen, ddof=min(len(chosen) - 1, 1))) / math.sqrt(len(chosen))
    return {"cells": cells, "depths": _means(records, (*_CELL, "depth"), ("first", "match"))}


def _means(
    records: Sequence[Mapping[str, Any]], keys: Sequence[str], names: Sequence[str], times: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Group records by keys; return the number of questions, the means and median times of each group."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return [
        dict(zip(keys, key, strict=True))
        | {"questions": len(group)}
        | {name: float(np.mean([record[name] for record in group])) for name in names}
        | {name: _median(record.get(name) for record in group) for name in times}
        for key, group in groups.items()
    ]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


Summary = dict[str, Any]
"""name, layers, parameters, state, and the keys of `summary`"""

_HOW = (
    "Right first is the share of right answers that the model finds more likely than all wrong ones of the "
    "same kind; chance is what a guess gives. In the text is the share of right answers that the model "
    "writes. Depth is the position of the answer in the text, from 0, its beginning, to 1, its end. A mixer "
    "is switched off by replacing the output of its layers with zeros. Click a column to sort."
)
KEYS = {"name", "layers", "parameters", "state", "cells", "depths"}
_COLUMNS: Columns = {
    "family": ("family", "text"),
    "off": ("switched off", "text"),
    "length": ("tokens", ",d"),
    "first": ("right first", ".3f"),
    "first_stderr": ("standard error", ".3f"),
    "chance": ("chance", ".3f"),
    "rank": ("mean rank", ".1f"),
    "match": ("in the text", ".3f"),
    "bytes": ("state, bytes", ",d"),
    "read_ms": ("ms per token read", ".3g"),
    "decode_ms": ("ms per token generated", ".3g"),
}


def write_pages(directory: Path, card: Summary) -> Path:
    """Write NAME.json and index.html with all summaries of the directory; return the path of the first.

    Raises:
        ValueError: a JSON file in the directory is no summary of this command.
    """
    return write_result(directory, card, KEYS, "Recall in long texts", _page)


def finding(card: Summary) -> str:
    """Return the result in a sentence per family."""
    sentences = []
    for family in dict.fromkeys(cell["family"] for cell in card["cells"]):
        whole = _cells(card, family)
        above = [cell for cell in whole if cell["first"] - 2 * cell["first_stderr"] > cell["chance"]]
        longest = max((cell["length"] for cell in above), default=None)
        last = max(whole, key=lambda cell: cell["length"])
        best = f"above chance up to {longest:,} tokens" if longest else "at no length above chance"
        sentences.append(f"{family}: recalls {best}; {last['first']:.0%} right first at {last['length']:,}.")
    return " ".join(sentences)


def _cells(card: Summary, family: str, off: str | None = None) -> list[dict[str, Any]]:
    """Return the cells of a family, of the whole model or without a mixer, with the bytes of the state."""
    sizes = {row["length"]: row["bytes"] for row in card["state"]}
    chosen = (cell for cell in card["cells"] if (cell["family"], cell["off"]) == (family, off))
    return [{**cell, "bytes": sizes[cell["length"]]} for cell in chosen]


def _page(cards: Sequence[Summary]) -> list[str]:
    families = dict.fromkeys(cell["family"] for card in cards for cell in card["cells"])
    panels = [Panel(family, "tokens", _lines(cards, family), "right first") for family in families]
    first = next(iter(families))
    by_state = [line(card["name"], _cells(card, first), "bytes", "first") for card in cards]
    states = "state of a text (bytes)"
    panels.append(Panel(f"{first}, by state", states, by_state, "right first", x_tick=byte_size))
    costs = [line(card["name"], _cells(card, first), "length", "decode_ms") for card in cards]
    panels.append(Panel("cost", "tokens", costs, "ms per generated token", None, y_log=True))
    title = "Recall in long texts, by length, by state, and its cost"
    parts = [f"<p>{_HOW}</p>", *figure(title, panels, columns=3)]
    for card in cards:
        parts += _section(card)
    return parts


def _lines(cards: Sequence[Summary], family: str) -> list[Line]:
    """Return a line per model; of a single one also those with a mixer switched off."""
    lines = [line(card["name"], _cells(card, family), "length", "first") for card in cards]
    if len(cards) == 1:
        off = dict.fromkeys(cell["off"] for cell in cards[0]["cells"] if cell["off"])
        lines += [line(f"without {name}", _cells(cards[0], family, name), "length", "first") for name in off]
    return lines


def _section(card: Summary) -> list[str]:
    kinds = dict.fromkeys((cell["family"], cell["off"]) for cell in card["cells"])
    cells = [cell | {"off": off or "none"} for family, off in kinds for cell in _cells(card, family, off)]
    by_depth: dict[tuple[str, int], dict[str, Any]] = {}
    for row in (row for row in card["depths"] if row["off"] is None):
        key = {name: row[name] for name in ("family", "length")}
        by_depth.setdefault(tuple(key.values()), key)[str(row["depth"])] = row["first"]
    depths = {name: (name, ".2f") for name in dict.fromkeys(str(row["depth"]) for row in card["depths"])}
    named: Columns = {"family": ("family", "text"), "length": ("tokens", ",d"), **depths}
    facts = f"{' - '.join(card['layers'])}, {card['parameters']:,} parameters"
    return [
        f"<h2>{escape(card['name'])}</h2><p>{escape(finding(card))} ({escape(facts)})</p>",
        table(cells, _COLUMNS),
        "<h3>Right first, by depth</h3>",
        table([*by_depth.values()], named),
    ]
