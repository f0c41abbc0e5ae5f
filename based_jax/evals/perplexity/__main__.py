"""Measure perplexity by slice: ``based-jax eval perplexity --checkpoint DIR --data PATH``."""

import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from based_jax import command
from based_jax.convert.pretrained import find_directory, load_pretrained
from based_jax.evals.bigrams.table import BigramTable
from based_jax.evals.options import CheckpointOptions, progress, write_json
from based_jax.evals.perplexity import records as recording
from based_jax.evals.perplexity.records import MAX_COUNT, Records, make_records, read_records, write_records
from based_jax.evals.perplexity.scoring import Scores, score_documents, score_windows
from based_jax.evals.perplexity.slices import expect_same_tokens, report, report_lines
from based_jax.evals.text import TextOptions, pack_text
from based_jax.models.language_model import LanguageModel
from based_jax.stop_request import StopRequest
from based_jax.typing import Params
from based_jax.validate import expect, expect_outputs, expect_ranges

PROG = "based-jax eval perplexity"
_OF_SCORING = ("context", "length", "cross_documents", "max_tokens", "tokenizer", "dtype")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CheckpointOptions):
    """Measure perplexity overall, on AR hits (repeated bigrams that are rare in training) and on the rest."""

    checkpoint: str
    """pretrained directory, a run's directory, a hub id, or a .parquet file written by --records, of
    which only the slices are computed"""
    text: Annotated[TextOptions, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TextOptions)
    context: Literal["window", "document"] = "window"
    """window: rows of --length tokens, as in the papers; document: whole documents, with the model's state"""
    length: int | None = None
    """tokens per window, or per call with --context document; default: the model's context"""
    stride: int | None = None
    """tokens between the beginnings of windows: fewer than --length give targets longer contexts, and take
    --length / --stride times as long; default: --length"""
    cross_documents: bool = False
    """let windows see across document boundaries, as the authors did; default: documents are separate"""
    max_tokens: int = 16_000_000
    """number of tokens of the data to use, from the start (Based: 16 million)"""
    counts: Path | None = None
    """count file of the training data (eval bigrams); without it every repeat is an AR hit"""
    max_count: int = MAX_COUNT
    """largest training count of an AR hit's bigram"""
    reference: str | None = None
    """model to compare with (attention in the papers), a checkpoint or a .parquet file, for the share of the
    gap that the AR hits explain"""
    records: Path | None = None
    """write one record per token to this .parquet file"""

    def __post_init__(self) -> None:
        if _is_records(self.checkpoint):
            data = self.text.data
            expect(data is None, "data", data, "none with a .parquet file, which has its own data")
            from_file = self.reference is None or _is_records(self.reference)
            expect(from_file, "reference", self.reference, "a .parquet file, as the checkpoint is one")
            for name in _OF_SCORING:
                value, default = getattr(self, name), getattr(Options, name)
                expected = f"{default!r}, as a .parquet file is not scored again"
                expect(value == default, name, value, expected)
        else:
            expect(self.text.data is not None, "data", None, "the text to evaluate on")
        expect_ranges(self, 1, "length", "stride", "batch_size", "max_tokens")
        read = self.context == "window" and not _is_records(self.checkpoint)
        wanted = "none with --context document or a .parquet file, which have no windows to read"
        expect(self.stride is None or read, "stride", self.stride, wanted)
        wanted = "not with --context document, which reads each document alone"
        is_window = self.context == "window" or not self.cross_documents
        expect(is_window, "cross_documents", self.cross_documents, wanted)
        expect(self.max_count >= 0, "max_count", self.max_count, "at least 0")
        expect_outputs(self, "records", "json")
        if self.records is not None:
            expect(_is_records(self.records), "records", str(self.records), "a name that ends in .parquet")
            recording.import_pyarrow()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 130 after an interruption."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = command.parse(Options, argv, prog=PROG)
    table = None if options.counts is None else BigramTable.load(options.counts)
    with StopRequest("this batch", "nothing is kept") as request:
        records, reference = evaluate(options, table, lambda: request.signal is not None)
        stopped = request.signal is not None
    result = report(records, options.max_count, reference)
    print("\n".join(report_lines(result)))
    if options.records is not None:
        write_records(options.records, records)
    write_json(options.json, result)
    if stopped:
        where = f"; their records are in {options.records}" if options.records else ""
        print(f"interrupted: these are the numbers of {len(records):,} tokens{where}", file=sys.stderr)
    return 130 if stopped else 0


def evaluate(
    options: Options, table: BigramTable | None = None, interrupted: Callable[[], bool] = lambda: False
) -> tuple[Records, Records | None]:
    """Return records of the model, with the counts of `table`, and of the reference, if there is one."""
    if _is_records(options.checkpoint):
        records = read_records(options.checkpoint)
        records = records if table is None else records.with_counts(table)
        return records, None if options.reference is None else read_records(options.reference)
    model, params, tokenizer, directory = options.open()
    length = options.length or model.config.max_length
    expect((options.stride or 1) <= length, "stride", options.stride, f"at most {length}, the length")
    packed, num_bytes = pack_text(options.text, tokenizer, options.max_tokens)
    if table is not None:
        own, size = table.vocab_size, tokenizer.vocab_size
        expect(own == size, "counts", f"a vocabulary of {own}", f"the tokenizer's {size}")
    cross, own_tokenizer = options.cross_documents, (directory / "tokenizer.json").is_file()
    info: dict[str, Any] = {
        "data": str(options.text),
        "tokenizer": options.tokenizer or (str(directory) if own_tokenizer else "byte"),
        "context": options.context,
        "cross_documents": cross,
        "num_bytes": num_bytes,
        "vocab_size": tokenizer.vocab_size,
    }
    how: dict[str, Any] = {"cross_documents": cross, "stride": options.stride}

    def recorded(source: str, scores: Scores) -> Records:
        window = length if options.context == "window" else None
        return make_records(packed, scores, window, info={"checkpoint": source, **info}, **how)

    # Errors before the work.
    reference = None
    if options.reference is not None and _is_records(options.reference):
        reference = read_records(options.reference)
        expect_same_tokens(recorded("", Scores.empty(len(packed) - 1)), reference)
    elif options.reference is not None:
        find_directory(options.reference)

    def score(source: str, model: LanguageModel, params: Params) -> Records:
        given = {"length": length, "batch_size": options.batch_size, "interrupted": interrupted}
        with progress(source, len(packed) - 1, "tokens") as advance:
            given["advance"] = advance
            if options.context == "window":
                scores = score_windows(model, params, packed, **how, **given)
            else:
                scores = score_documents(model, params, packed, **given)
        return recorded(source, scores).reached()

    records = score(options.checkpoint, model, params)
    del params  # so that two models need not fit in memory
    expect(len(records) > 0, "data", str(options.text), "more time: interrupted before the first batch")
    if options.reference is not None and reference is None and not interrupted():
        reference = score(options.reference, *load_pretrained(options.reference, dtype=options.dtype))
    reference = None if interrupted() else reference
    return records if table is None else records.with_counts(table), reference


def _is_records(source: str | Path) -> bool:
    return str(source).endswith(".parquet")


if __name__ == "__main__":
    command.run(PROG, main)
