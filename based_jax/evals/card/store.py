"""Keep recall cards as JSON files in a directory, with one page of all of them."""

import os
from pathlib import Path

from based_jax.evals.card.page import write_card_page
from based_jax.evals.card.recall_card import RecallCard
from based_jax.evals.pages import add_result, results_in

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
