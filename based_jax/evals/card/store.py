"""Keep recall cards as JSON files in a directory, with one page of all of them."""

import os
import re
from pathlib import Path

from based_jax.evals.card.page import write_card_page
from based_jax.evals.card.recall_card import RecallCard
from based_jax.evals.options import write_json
from based_jax.files import read_json
from based_jax.validate import expect

_NAME = re.compile(r"[\w][\w.\- ]*")


def write_recall_card(directory: str | os.PathLike[str], card: RecallCard) -> Path:
    """Write a card as NAME.json, and index.html with all cards in the directory, which is made if needed.

    Returns:
        The path of the JSON file.

    Raises:
        ValueError: a name that is no file name, or another JSON file in the directory that is no card.
    """
    name = card["name"]
    expect(bool(_NAME.fullmatch(name)), "name", name, "letters, digits, spaces, dots, - and _")
    folder = Path(directory)
    path = folder / f"{name}.json"
    write_json(path, card)
    write_card_page(folder / "index.html", read_cards(folder))
    return path


def read_cards(directory: Path) -> list[RecallCard]:
    """Read all cards of a directory, in the order of their names."""
    cards = []
    for path in sorted(directory.glob("*.json")):
        card = read_json(path)
        is_card = (
            isinstance(card, dict) and {"name", "mqar", "hits", "probe", "state", "parts"} <= card.keys()
        )
        expect(is_card, "directory", str(path), "only files of recall cards")
        cards.append(card)
    return cards
