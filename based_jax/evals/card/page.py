"""Write recall cards as one self-contained HTML page, with a comparison if there are several."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from based_jax.evals.card.recall_card import RecallCard, cells_of
from based_jax.html_page import Columns, figure, line, table, write_result
from based_jax.plot import Line, Panel, byte_size

KEYS = {"name", "mqar", "hits", "probe", "state", "parts"}
_HOW = (
    "Accuracy is the share of right answers. MQAR: rows of key-value pairs and random tokens, in which "
    "each key comes again and asks for its value. AR hits: tokens that end a bigram which came before. "
    "Probe: MQAR with one fixed filler token. A part is switched off by replacing the output of its layers "
    "with zeros. Click a column to sort."
)
_PAIRS = "key-value pairs"

_COLUMNS: Columns = {
    "name": ("tokens", "text"),
    "tokens": ("number", ",d"),
    "share": ("share", ".1%"),
    "loss": ("loss, nats", ".3f"),
    "length": ("length", "d"),
    "pairs": ("pairs", "d"),
    "bytes": ("bytes of a row", ",d"),
    "accuracy": ("accuracy", ".3f"),
    "stderr": ("standard error", ".3f"),
    "perplexity": ("perplexity", ",.3f"),
    "filler_perplexity": ("perplexity of filler", ",.3f"),
}
_COMPARED: Columns = {
    "name": ("model", "text"),
    "finding": ("finding", "prose"),
    "bytes": ("state, bytes", ",d"),
    "accuracy": ("MQAR accuracy, mean", ".3f"),
    "hits": ("perplexity of AR hits", ",.3f"),
    "probe": ("probe accuracy, most pairs", ".3f"),
}
_PARTS: Columns = {
    "part": ("switched off", "text"),
    "role": ("role", "text"),
    "accuracy": ("accuracy, mean", ".3f"),
    "kept": ("share kept", ".2f"),
}


def write_recall_card(directory: str | os.PathLike[str], card: RecallCard) -> Path:
    """Write a card as NAME.json, and index.html with all cards in the directory, which is made if needed.

    Returns:
        The path of the JSON file.

    Raises:
        ValueError: a name that is no file name, or another JSON file in the directory that is no card.
    """
    return write_result(Path(directory), card, KEYS, "Recall card", _page)


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


def _page(cards: Sequence[RecallCard]) -> list[str]:
    parts = [f"<p>{_HOW}</p>", *(_comparison(cards) if len(cards) > 1 else [])]
    for card in cards:
        parts += _section(card)
    return parts


def _comparison(cards: Sequence[RecallCard]) -> list[str]:
    rows = []
    for card in cards:
        probe, state = (cells_of(card[key])[-1:] or [{}] for key in ("probe", "state"))
        known = {"name": card["name"], "finding": finding(card), "bytes": state[0].get("bytes")}
        known |= {"accuracy": card["parts"].get("accuracy"), "probe": probe[0].get("accuracy")}
        rows.append(known | {"hits": (card["hits"].get("hits") or {}).get("perplexity")})
    by_pairs = [
        line(card["name"], cells_of(card["mqar"], length=card["length"]), "pairs", "accuracy")
        for card in cards
    ]
    by_state = [line(card["name"], cells_of(card["state"]), "bytes", "accuracy") for card in cards]
    states = "state after a row (bytes), a point per length"
    panels = [
        Panel("by pairs, at the longest rows", _PAIRS, by_pairs),
        Panel("by state, mean over the pairs", states, by_state, x_tick=byte_size),
    ]
    return ["<h2>All models</h2>", table(rows, _COMPARED), *figure("MQAR accuracy of all models", panels)]


def _section(card: RecallCard) -> list[str]:
    model = card["model"]
    facts = f"vocabulary {card['vocab_size']:,}, {card['examples']} rows per cell, seed {card['seed']}"
    if "parameters" in model:
        facts = f"{' - '.join(model['layers'])}, {model['parameters']:,} parameters, {facts}"
    return [
        f"<h2>{escape(card['name'])}</h2><p>{escape(finding(card))} ({escape(facts)})</p>",
        *("<h3>MQAR</h3>", _cells(card["mqar"]), *_figure(card)),
        *("<h3>Parts switched off</h3>", *_parts(card["parts"])),
        *("<h3>AR hits</h3>", *_hits(card["hits"])),
        *("<h3>Recall probe</h3>", _cells(card["probe"])),
        *("<h3>State (accuracy: mean over the pairs)</h3>", _cells(card["state"])),
    ]


def _cells(found: Any) -> str:
    if isinstance(found, dict):
        return f"<p>Not measured: {escape(found['not_measured'])}.</p>"
    return table(found, _COLUMNS)


def _hits(hits: Any) -> list[str]:
    if "not_measured" in hits:
        return [_cells(hits)]
    gap = "no gap"
    if hits["gap"] is not None:
        gap = f"the loss on hits is {hits['gap']:.3f} nats lower than on others"
    random = " The other tokens are random: no model predicts them." if "synthetic" in hits["source"] else ""
    cells = [{"name": name, **hits[name]} for name in ("all", "hits", "other")]
    return [f"<p>{escape(hits['source'].capitalize())}: {gap}.{random}</p>", _cells(cells)]


def _parts(parts: RecallCard) -> list[str]:
    if "not_measured" in parts:
        return [_cells(parts)]
    rows, notes = [{"part": "none", "accuracy": parts["accuracy"], **parts["by_pairs"]}], []
    for row in parts["without"]:
        if "not_measured" in row:
            notes.append(f"<p>{escape(row['part'])}: not measured: {escape(row['not_measured'])}</p>")
            continue
        layers = f" (layer {', '.join(map(str, row['layers']))})" if row["layers"] else ""
        rows.append({**row, "part": row["part"] + layers, **row["by_pairs"]})
    return [table(rows, {**_PARTS, **{name: (f"{name} pairs", ".3f") for name in parts["by_pairs"]}}), *notes]


def _figure(card: RecallCard) -> list[str]:
    cells, parts = cells_of(card["mqar"]), card["parts"]
    if not cells:
        return []
    lengths = sorted({cell["length"] for cell in cells})
    by_length = [
        line(f"{length} tokens", cells_of(cells, length=length), "pairs", "accuracy") for length in lengths
    ]
    panels = [Panel("by length", _PAIRS, by_length)]
    if "without" in parts:
        rows = {"whole model": parts} | {f"without {row['part']}": row for row in parts["without"]}
        lines = [
            Line(name, [(int(count), accuracy) for count, accuracy in row["by_pairs"].items()])
            for name, row in rows.items()
            if "by_pairs" in row
        ]
        panels.append(Panel("with a part switched off, mean over the lengths", _PAIRS, lines))
    return figure(f"MQAR accuracy: {card['name']}", panels)
