"""How far back repeated bigrams are: ``python -m based_jax.evals.distances --data PATH``. No model is needed.

Zoology's Figures 3 (Pile) and 4, 5 (parts of RedPajama, one call each).
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from based_jax import command
from based_jax.data import PackedTokens, load_tokenizer
from based_jax.evals.bigram_table import BigramTable
from based_jax.evals.repeats import MAX_COUNT, is_hit, stream_distances
from based_jax.evals.report_table import distance_lines
from based_jax.evals.slices import distances
from based_jax.evals.text import TextOptions, pack_text
from based_jax.validate import expect

PROG = "python -m based_jax.evals.distances"


@dataclasses.dataclass(frozen=True)
class Options:
    """Distances between a repeated bigram and its last occurrence in the same sequence."""

    text: Annotated[TextOptions, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TextOptions)
    tokenizer: str = "byte"
    """byte, gpt2 (if cached locally), or a tokenizers JSON file"""
    length: int = 2048
    """tokens per sequence"""
    cross_documents: bool = False
    """count repeats across document boundaries, as the authors did"""
    max_tokens: int = 16_000_000
    """tokens of the data that are used, from the first"""
    counts: Path | None = None
    """count file of the training data (based_jax.evals.bigrams); without it every repeat is an AR hit"""
    max_count: int = MAX_COUNT
    """largest training count of an AR hit's bigram"""
    json: Path | None = None
    """write the numbers to this file"""

    def __post_init__(self) -> None:
        for name in ("length", "max_tokens"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        expect(self.max_count >= 0, "max_count", self.max_count, "at least 0")
        good = self.json is None or self.json.parent.is_dir()
        expect(good, "json", str(self.json), "a file in an existing directory")


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    options = command.parse(Options, argv, prog=PROG)
    table = None if options.counts is None else BigramTable.load(options.counts)
    packed, _ = pack_text(options.text, load_tokenizer(options.tokenizer), options.max_tokens)
    result = histogram(packed, options.length, options.cross_documents, table, options.max_count)
    print(f"{result['tokens']:,} tokens in {result['sequences']:,} sequences")
    for name in ("repeats", "hits"):
        print(f"{name:<8}{result[f'{name}_per_sequence']:>10.1f} per sequence")
    print("\n".join(distance_lines(result)))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def histogram(
    packed: PackedTokens,
    length: int,
    cross_documents: bool = False,
    table: BigramTable | None = None,
    max_count: int = MAX_COUNT,
) -> dict[str, Any]:
    """tokens, sequences, repeats and hits per sequence (Figure 4), `slices.distances` (Figures 3 and 5)."""
    sequence, distance = stream_distances(packed, length, cross_documents)
    counts = None if table is None else table.lookup(packed.tokens[:-1], packed.tokens[1:])
    hits = is_hit(distance, counts, max_count)
    sequences = int(sequence[-1]) + 1
    return {
        "tokens": len(packed) - 1,
        "sequences": sequences,
        "repeats_per_sequence": int(np.count_nonzero(distance)) / sequences,
        "hits_per_sequence": int(hits.sum()) / sequences,
        **distances(distance, hits),
    }


if __name__ == "__main__":
    command.run(PROG, main)
