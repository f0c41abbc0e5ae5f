"""Measure recall: ``based-jax eval recall --checkpoint DIR --task swde --data hub``."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from based_jax import command
from based_jax.evals.options import CheckpointOptions, Records, as_text, digest, print_table, write_json
from based_jax.evals.perplexity.scoring import expect_positions
from based_jax.evals.recall.protocol import CONTEXT, answer, greedy, make_prompt, read_examples, summarize
from based_jax.published.tables import table as published_table
from based_jax.validate import expect_outputs, expect_ranges

PROG = "based-jax eval recall"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CheckpointOptions):
    """Ask a language model for a value in its prompt, and count the answers that contain it."""

    task: Literal["swde", "fda", "squad_completion"]
    """the recall task, which determines the data set and its columns"""
    data: str = "hub"
    """.jsonl file with the published columns, hub (the published data) or hf:NAME (other data)"""
    batch_size: int = 8
    """prompts per batch; with the authors' padding it changes the answers"""
    limit: int | None = None
    """answer only this many rows, from the first"""
    padding: Literal["correct", "authors"] = "correct"
    """correct: no row sees padding; authors: visible separators before shorter rows, as in their code"""
    context: int = CONTEXT
    """tokens of prompt and answer together; longer prompts are truncated on the left"""
    records: Path | None = None
    """.jsonl file with one line per answered example; the same command resumes from it"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "batch_size", "limit")
        expect_outputs(self, "json")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = command.parse(Options, argv, prog=PROG)
    examples = read_examples(options.task, options.data)
    opened = options.open()
    expect_positions(opened.model, "context", options.context)
    settings: dict[str, Any] = {"examples": examples, "padding": options.padding, "context": options.context}
    if options.padding == "authors":  # answers depend on the other rows of the batch
        settings |= {"batch_size": options.batch_size, "limit": options.limit}
    depends = "model, tokenizer, data, context, dtype and padding (authors: batch size and limit, too)"
    records = Records(options.records, digest(opened, **settings), int, depends)
    tokenizer, asked = opened.tokenizer, examples[: options.limit]
    prompts = [make_prompt(example, tokenizer, context=options.context) for example in asked]
    generator = greedy(opened.model, opened.params, tokenizer)
    batching = {"batch_size": options.batch_size, "padding": options.padding}
    batches = answer(prompts, tokenizer, generator, records, **batching)
    ids = [example.id for example in asked]
    result = summarize(records.collect(PROG, options.task, "examples", ids, batches))
    show(options, result)
    write_json(options.json, {"options": as_text(options), **result, "published": _published(options.task)})


def show(options: Options, result: Mapping[str, Any]) -> None:
    """Print the result above the published ones."""
    title = f"{options.task}: answers that contain the value, percent"
    table = Table("model", "parameters/tokens", "source", title=title, title_justify="left")
    table.add_column("contains", justify="right")
    here = f"{result['examples']:,} examples, {result['truncated']:,} truncated, {options.padding} padding"
    ours = f"{result['contains']:.2f} ± {result['standard_error']:.2f}"
    table.add_row(options.checkpoint, "", here, ours, end_section=True)
    for row in _published(options.task):
        table.add_row(row["model"], row["size"], row["source"], f"{row['contains']:.2f}")
    print_table(table)


def _published(task: str) -> list[dict[str, Any]]:
    """Return rows of the authors' results: first the released checkpoints', then those of the paper's."""
    rows = []
    for name, model in (("based_readme_recall", "checkpoint"), ("based_table_1", "model")):
        found = published_table(name)
        rows += [
            {"model": row[model], "size": row["size"], "source": found.source, "contains": row[task]}
            for row in found.rows
            if row[task] is not None
        ]
    return rows


if __name__ == "__main__":
    command.run(PROG, main)
