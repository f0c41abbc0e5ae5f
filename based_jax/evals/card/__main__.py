"""Write the recall card of a checkpoint: ``based-jax eval card --checkpoint DIR --out DIR``.

The output directory gets NAME.json, and index.html with every card in the directory, so that several models
are compared by one command each.
"""

import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from based_jax import command
from based_jax.convert.pretrained import find_directory, find_tokenizer, parse_config, read_config
from based_jax.evals.card.page import KEYS, finding, write_recall_card
from based_jax.evals.card.recall_card import EXAMPLES, PAIRS, SEED, recall_card
from based_jax.evals.card.subject import name_of
from based_jax.evals.text import TextOptions, pack_text
from based_jax.html_page import expect_result
from based_jax.validate import expect, expect_ranges

PROG = "based-jax eval card"


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure a model's recall: MQAR, AR hits, the probe, its state, and each kind of mixer switched off."""

    checkpoint: str
    """pretrained directory, a run's directory (of train lm or train mqar), or a hub id"""
    out: Path
    """directory for NAME.json and index.html, which shows all cards in the directory"""
    name: str | None = None
    """name of the card; default: that of the checkpoint's directory"""
    lengths: tuple[int, ...] | None = None
    """tokens per row, even numbers; default: the training context up to 256, a half and a quarter of it"""
    pairs: tuple[int, ...] = PAIRS
    """key-value pairs per row; only those with 4 pairs <= length are measured"""
    examples: int = EXAMPLES
    """rows of each cell"""
    filler: int = 0
    """token between the probe's queries"""
    text: str | None = None
    """text in which AR hits, all repeats, are compared with other tokens: a file, or what --data of eval
    perplexity takes; default: a synthetic stream"""
    tokenizer: str | None = None
    """of the text: byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory, instead of
    the checkpoint's own"""
    max_tokens: int = 100_000
    """number of tokens of the text to use, from the start"""
    batch_size: int | None = None
    """rows per call; affects only the speed"""
    seed: int = SEED
    """seed of the data"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "examples", "max_tokens", "batch_size")
        expect(self.tokenizer is None or self.text is not None, "tokenizer", self.tokenizer, "a text as well")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = command.parse(Options, argv, prog=PROG)
    text, directory = None, find_directory(options.checkpoint)
    expect_result(options.out, options.name or name_of(directory), KEYS)
    if options.text is not None:
        vocab_size = parse_config(read_config(directory), {}, directory).vocab_size
        tokenizer = find_tokenizer(directory, options.tokenizer, vocab_size)
        text = pack_text(TextOptions(options.text), tokenizer, options.max_tokens)[0]
    given = ("name", "lengths", "pairs", "examples", "filler", "batch_size", "seed")
    settings = {field: getattr(options, field) for field in given}
    card = recall_card(directory, text=text, **settings)
    path = write_recall_card(options.out, card)
    print(f"{finding(card)}\n{path} and {options.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    command.run(PROG, main)
