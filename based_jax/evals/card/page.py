"""Write recall cards as one self-contained HTML page, with a comparison if there are several."""

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from based_jax import html_page, plot
from based_jax.evals.card.recall_card import RecallCard
from based_jax.evals.pages import add_result, figure, results_in
from based_jax.html_page import number, prose, text
from based_jax.plot import Line, Panel, byte_size

TITLE = "Recall card"
_PAIRS = "key-value pairs"


def write_card_page(path: Path, cards: Sequence[RecallCard]) -> None:
    """Write the page: a table and a figure of all cards if there are several, then each card."""
    parts = [f"<p>{_HOW}</p>", *(_comparison(cards) if len(cards) > 1 else [])]
    for card in cards:
        parts += _section(card)
    if reason := plot.missing():
        parts.append(f"<p>{escape(reason)}</p>")
    title = TITLE if len(cards) > 1 else f"{TITLE}: {cards[0]['name']}"
    html_page.write_page(path, title, parts)


_HOW = (
    "Accuracy is the share of right answers. MQAR: rows of key-value pairs and random tokens, in which "
    "each key comes again and asks for its value. AR hits: tokens that end a bigram which came before. "
    "Probe: MQAR with one fixed filler token. A part is switched off by replacing the output of its layers "
    "with zeros. Click a column to sort."
)


def finding(card: RecallCard) -> str:
    """Return the card's result in one or two sentences."""
    cells = card["mqar"]
    if isinstance(cells, dict):
        return f"Not measured: {cells['not_measured']}."
    last = max(cells, key=lambda cell: (cell["length"], cell["pairs"]))
    sentences = [f"Accuracy {last['accuracy']:.3f} with {last['pairs']} pairs in {last['length']} tokens."]
    rows = card["parts"].get("without", [])
    for role, words in (("carries recall", "carried by"), ("bypassed", "not affected by switching off")):
        if named := [row["part"] for row in rows if row.get("role") == role]:
            sentences.append(f"Recall is {words} {', '.join(named)}.")
    return " ".join(sentences)


def _comparison(cards: Sequence[RecallCard]) -> list[str]:
    rows = []
    for card in cards:
        probe, state = (
            found[-1] if isinstance(found := card[key], list) else {} for key in ("probe", "state")
        )
        hits = card["hits"].get("hits") or {}
        cells = [text(card["name"]), prose(finding(card)), number(state.get("bytes"), ",d")]
        cells += [number(card["parts"].get("accuracy"), ".3f"), _perplexity(hits.get("perplexity"))]
        rows.append([*cells, number(probe.get("accuracy"), ".3f")])
    heads = ["model", "finding", "state, bytes", "MQAR accuracy, mean", "perplexity of AR hits"]
    by_pairs = [Line(card["name"], _at_longest(card)) for card in cards]
    by_state = [
        Line(card["name"], [(row["bytes"], row["accuracy"]) for row in card["state"]])
        for card in cards
        if isinstance(card["state"], list)
    ]
    panels = [
        Panel("by pairs, at the longest rows", _PAIRS, by_pairs),
        Panel(
            "by state, mean over the pairs",
            "state after a row (bytes), a point per length",
            by_state,
            x_tick=byte_size,
        ),
    ]
    table = html_page.table([*heads, "probe accuracy, most pairs"], rows)
    return ["<h2>All models</h2>", table, *figure("MQAR accuracy of all models", panels)]


def _section(card: RecallCard) -> list[str]:
    model = card["model"]
    facts = [
        f"vocabulary {card['vocab_size']:,}",
        f"{card['examples']} rows per cell",
        f"seed {card['seed']}",
    ]
    if "parameters" in model:
        facts = [" - ".join(model["layers"]), f"{model['parameters']:,} parameters", *facts]
    parts = [
        f"<h2>{escape(card['name'])}</h2>",
        f"<p>{escape(finding(card))} ({escape(', '.join(facts))})</p>",
    ]
    parts += ["<h3>MQAR</h3>", *_cells(card["mqar"])]
    if isinstance(card["mqar"], list):
        parts += figure(f"MQAR accuracy: {card['name']}", _panels(card))
    parts += ["<h3>Parts switched off</h3>", *_parts(card["parts"])]
    parts += ["<h3>AR hits</h3>", *_hits(card["hits"])]
    parts += ["<h3>Recall probe</h3>", *_cells(card["probe"])]
    return [*parts, "<h3>State (accuracy: mean over the pairs)</h3>", *_cells(card["state"])]


def _perplexity(value: float | None) -> str:
    return number(value, ",.0f" if value is not None and value >= 100 else ".3g")


_COLUMNS = {
    "name": ("tokens", None),
    "tokens": ("number", ",d"),
    "share": ("share", ".1%"),
    "loss": ("loss, nats", ".3f"),
    "length": ("length", "d"),
    "pairs": ("pairs", "d"),
    "bytes": ("bytes of a row", ",d"),
    "accuracy": ("accuracy", ".3f"),
    "stderr": ("standard error", ".3f"),
    "perplexity": ("perplexity", ""),
    "filler_perplexity": ("perplexity of filler", ""),
}
"""Key of a cell -> head of its column, and format of its numbers: "" is that of perplexities, None text."""


def _cells(cells: Any) -> list[str]:
    if isinstance(cells, dict):
        return [_missing(cells)]
    columns = [(key, *column) for key, column in _COLUMNS.items() if key in cells[0]]
    rows = [[_cell(cell[key], form) for key, _, form in columns] for cell in cells]
    return [html_page.table([head for _, head, _ in columns], rows)]


def _cell(value: Any, form: str | None) -> str:
    if form is None:
        return text(value)
    return number(value, form) if form else _perplexity(value)


def _hits(hits: Any) -> list[str]:
    if "not_measured" in hits:
        return [_missing(hits)]
    gap = "no gap"
    if hits["gap"] is not None:
        gap = f"the loss on hits is {hits['gap']:.3f} nats lower than on others"
    random = " The other tokens are random: no model predicts them." if "synthetic" in hits["source"] else ""
    cells = [{"name": name, **hits[name]} for name in ("all", "hits", "other")]
    return [f"<p>{escape(hits['source'].capitalize())}: {gap}.{random}</p>", *_cells(cells)]


def _parts(parts: RecallCard) -> list[str]:
    if "not_measured" in parts:
        return [_missing(parts)]
    names = list(parts["by_pairs"])
    rows = [[text("none"), text(""), number(parts["accuracy"], ".3f"), "<td></td>", *_of_pairs(parts, names)]]
    notes = []
    for row in parts["without"]:
        if "not_measured" in row:
            notes.append(f"<p>{escape(row['part'])}: not measured: {escape(row['not_measured'])}</p>")
            continue
        layers = f" (layer {', '.join(map(str, row['layers']))})" if row["layers"] else ""
        cells = [text(row["part"] + layers), text(row["role"]), number(row["accuracy"], ".3f")]
        rows.append([*cells, number(row["kept"], ".2f"), *_of_pairs(row, names)])
    heads = ["switched off", "role", "accuracy, mean", "share kept", *(f"{name} pairs" for name in names)]
    return [html_page.table(heads, rows), *notes]


def _of_pairs(row: RecallCard, names: Iterable[str]) -> list[str]:
    return [number(row["by_pairs"].get(name), ".3f") for name in names]


def _missing(found: RecallCard) -> str:
    return f"<p>Not measured: {escape(found['not_measured'])}.</p>"


def _panels(card: RecallCard) -> list[Panel]:
    cells = card["mqar"]
    by_length = [
        Line(
            f"{length} tokens",
            [(cell["pairs"], cell["accuracy"]) for cell in cells if cell["length"] == length],
        )
        for length in sorted({cell["length"] for cell in cells})
    ]
    panels = [Panel("by length", _PAIRS, by_length)]
    parts = card["parts"]
    if "without" in parts:
        rows = [("whole model", parts), *((f"without {row['part']}", row) for row in parts["without"])]
        lines = [
            Line(name, [(int(pairs), value) for pairs, value in row["by_pairs"].items()])
            for name, row in rows
            if "by_pairs" in row
        ]
        panels.append(Panel("with a part switched off, mean over the lengths", _PAIRS, lines))
    return panels


def _at_longest(card: RecallCard) -> list[tuple[float, float]]:
    cells = card["mqar"] if isinstance(card["mqar"], list) else []
    return [(cell["pairs"], cell["accuracy"]) for cell in cells if cell["length"] == card["length"]]


_KEYS = {"name", "mqar", "hits", "probe", "state", "parts"}


def write_recall_card(directory: str | os.PathLike[str], card: RecallCard) -> Path:
    """Write a card as NAME.json, and index.html with all cards in the directory, which is made if needed.

    Returns:
        The path of the JSON file.

    Raises:
        ValueError: a name that is no file name, or another JSON file in the directory that is no card.
    """
    path, cards = add_result(Path(directory), card, _KEYS)
    write_card_page(path.with_name("index.html"), cards)
    return path


def read_cards(directory: Path) -> list[RecallCard]:
    """Read all cards of a directory, in the order of their names."""
    return results_in(directory, _KEYS)
