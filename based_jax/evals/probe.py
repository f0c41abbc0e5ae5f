"""Probe recall in any model's vocabulary: ``based-jax eval probe --checkpoint DIR``.

The model reads rows of `data.tasks.RecallProbe`: key-value pairs of random tokens, then the keys again
between copies of one filler token. The perplexity of the values at the repeated keys (the AR tokens) measures
recall, and that of the filler measures everything else (Zoology, appendix G and Figure 8).
"""

import dataclasses
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from based_jax import command, plot
from based_jax.convert.pretrained import find_directory, load_pretrained
from based_jax.convert.tokenizer import find_tokenizer, own_tokenizer
from based_jax.data.tasks import IGNORE, RecallProbe
from based_jax.evals.label_scores import LabelScorer
from based_jax.evals.options import expect_positive, expect_writable, write_json
from based_jax.evals.perplexity.slice_figures import Result, expect_figure, read_results, short_names
from based_jax.evals.progress import progress
from based_jax.evals.target_scores import expect_left_to_right
from based_jax.plot import Line, Panel
from based_jax.typing import Int
from based_jax.validate import expect

PROG = "based-jax eval probe"
PAIRS = (16, 32, 64, 128, 256)
"""Numbers of pairs in the paper's figure."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Measure the perplexity of recalled values among random tokens, by the number of pairs."""

    checkpoint: str
    """pretrained directory, a run's directory or a hub id"""
    pairs: tuple[int, ...] = PAIRS
    """numbers of key-value pairs"""
    length: int = 1024
    """tokens per row, at least four times the pairs"""
    samples: int = 1000
    """rows for each number of pairs"""
    filler: int | None = None
    """token between the queries; default: the tokenizer's token of a newline, or 0 without a tokenizer"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory, to find the newline;
    default: the checkpoint's own"""
    seed: int = 0
    """seed of the rows"""
    batch_size: int | None = None
    """rows per call; affects only the speed"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """compute dtype; default: the checkpoint's"""
    json: Path | None = None
    """write the result to this file"""
    figure: Path | None = None
    """draw the perplexities against the number of pairs into this .png, .pdf or .svg file"""
    beside: tuple[Path, ...] = ()
    """files written with --json for other models, to show in the figure as well"""

    def __post_init__(self) -> None:
        expect(len(self.pairs) > 0, "pairs", self.pairs, "at least one number")
        expect_positive(self, "length", "samples", "batch_size")
        expect_writable(self, "json")
        expect_figure(self.figure, self.beside, "pairs")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = command.parse(Options, argv, prog=PROG)
    directory = find_directory(options.checkpoint)
    model, params = load_pretrained(directory, dtype=options.dtype)
    size = model.config.vocab_size
    expect_left_to_right(model, size - 1)
    limit = model.config.max_positions
    expect(not limit or options.length <= limit, "length", options.length, f"at most the model's {limit}")
    filler = options.filler if options.filler is not None else _newline(options, directory, size)
    tasks = [RecallProbe(size, options.samples, options.length, pairs, filler) for pairs in options.pairs]

    def logits(tokens: Any) -> Any:
        return model.apply(params, tokens)[0]

    scorer = LabelScorer(logits, options.length, size, batch_size=options.batch_size)
    with progress("probe", len(tasks) * options.samples, "rows") as advance:
        rows = []
        for task in tasks:
            rows.append(probe(scorer, task, options.seed))
            advance(options.samples)
    shared = {name: getattr(options, name) for name in ("checkpoint", "length", "samples", "seed")}
    result = {**shared, "vocab_size": size, "filler": filler, "pairs": rows}
    show(result)
    write_json(options.json, result)
    if options.figure is not None:
        draw(options.figure, [result, *read_results(options.beside, "pairs")])


def probe(scorer: LabelScorer, task: RecallProbe, seed: int) -> dict[str, float | int | None]:
    """Return accuracy and perplexity of the AR tokens and perplexity of the filler, over all rows of a task.

    Filler right after a key is not scored, because a model that recalls expects the value there. With
    ``length == 4 * num_pairs`` there is no other filler, and its loss and perplexity are None.
    """
    segment = task.build(seed)
    inputs, answers = np.asarray(segment.inputs), np.asarray(segment.labels)
    targets = with_filler(inputs, answers, task.filler)
    scores = scorer(inputs, targets)
    is_recall = answers[scores.row, scores.position] != IGNORE
    found: dict[str, float | int | None] = {"num_pairs": task.num_pairs}
    found["accuracy"] = float(scores.correct[is_recall].mean())
    for name, mask in (("ar", is_recall), ("filler", ~is_recall)):
        count = int(mask.sum())
        loss = float(scores.loss[mask].mean(dtype=np.float64)) if count else None
        perplexity = None if loss is None else math.exp(loss)
        found |= {f"{name}_tokens": count, f"{name}_loss": loss, f"{name}_perplexity": perplexity}
    return found


def with_filler(
    inputs: Int[np.ndarray, "n N"], labels: Int[np.ndarray, "n N"], filler: int
) -> Int[np.ndarray, "n N"]:
    """Add the filler to a probe's labels: the next token, if it is filler and no value is asked for."""
    following = np.concatenate([inputs[:, 1:], np.full_like(inputs[:, :1], IGNORE)], axis=1)
    return np.where((labels == IGNORE) & (following == filler), following, labels)


def show(result: Result) -> None:
    """Print the result."""
    title = f"{result['checkpoint']}: {result['samples']:,} rows of {result['length']:,} tokens"
    table = Table("pairs", title=title, title_justify="left")
    for column in ("accuracy", "AR perplexity", "filler perplexity"):
        table.add_column(column, justify="right")
    for row in result["pairs"]:
        values = (row[f"{name}_perplexity"] for name in ("ar", "filler"))
        perplexities = ("no tokens" if value is None else f"{value:.4g}" for value in values)
        table.add_row(str(row["num_pairs"]), f"{row['accuracy']:.4f}", *perplexities)
    Console(width=None if sys.stdout.isatty() else 140, markup=False, highlight=False).print(table)


def draw(path: Path, results: Sequence[Result]) -> None:
    """Draw the perplexity of AR tokens and of filler against the number of pairs, by model."""
    models = short_names([(str(result["checkpoint"]), result) for result in results])

    def lines(key: str) -> Iterable[Line]:
        for name, result in models.items():
            points = [(row["num_pairs"], row[key]) for row in result["pairs"]]
            yield Line(name, [(pairs, value) for pairs, value in points if value is not None])

    ticks = sorted({row["num_pairs"] for result in results for row in result["pairs"]})
    panels = [
        Panel(title, "key-value pairs", list(lines(key)), "perplexity", None, y_log=True, ticks=ticks)
        for title, key in (("AR tokens", "ar_perplexity"), ("filler tokens", "filler_perplexity"))
    ]
    facts = (
        f"{results[0]['samples']:,} rows of {results[0]['length']:,} tokens for each number of pairs. "
        "AR tokens: values of repeated keys."
    )
    plot.draw("Recall of random tokens, by the number of pairs", facts, panels, path)


def _newline(options: Options, directory: Path, size: int) -> int:
    """Return the tokenizer's token of a newline; 0 for a model without a tokenizer."""
    spec = options.tokenizer
    tokenizer = own_tokenizer(directory, size) if spec is None else find_tokenizer(directory, spec, size)
    if tokenizer is None:
        return 0
    tokens = tokenizer.encode("\n")
    expect(len(tokens) == 1, "filler", None, "a token, because the tokenizer has none for a newline")
    return int(tokens[0])


if __name__ == "__main__":
    command.run(PROG, main)
