"""Tokenize text into shards on disk: ``based-jax train tokenize --data stdlib --tokenizer byte --out DIR``.

The text is streamed, so memory does not grow with it. After an interruption the same command resumes.
"""

import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import tyro

from based_jax import command, data
from based_jax.data.documents import (
    REPORT,
    advice,
    describe_counts,
    describe_not_read,
    read_report,
    report_table,
)
from based_jax.data.readers import ReadOptions
from based_jax.data.shards.blocks import find_sources
from based_jax.data.shards.manifest import HeldOutRule, Manifest
from based_jax.data.shards.tokenize import Progress, tokenize
from based_jax.data.sources import expect_outside
from based_jax.stop_request import StopRequest
from based_jax.training.run.progress import short
from based_jax.validate import expect, expect_ranges

PROG = "based-jax train tokenize"
HELD_OUT_BYTES = 4 << 20
"""Default limit of held-out text, about a million GPT-2 tokens: each evaluation reads all of it."""
_SECONDS = 20.0  # between progress lines where there is no terminal


@dataclasses.dataclass(frozen=True)
class TokenizeConfig:
    """Tokenize text into shards that train lm reads in place."""

    data: tuple[str, ...]
    """sources in order: stdlib, files, directories, globs, or
    hf:NAME[:[CONFIG:]SPLIT], which on resuming streams its rows again up to the interruption"""
    tokenizer: str
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory"""
    out: Path
    """directory of the shards: a new one, or that of an interrupted command"""
    include: str | None = None
    """also read these files as plain text, e.g. '*.rst,README'; '*' is every file"""
    reading: Annotated[ReadOptions, tyro.conf.arg(name="")] = ReadOptions()  # noqa: RUF009
    held_out: float = 0.02
    """share of the documents to hold out for evaluation; 0: none"""
    held_out_bytes: int | None = None
    """maximum bytes of held-out text, all of which each evaluation reads; the rest is used for training;
    default: 4194304, or no limit with --held-out-names"""
    held_out_names: str | None = None
    """hold out these files or FASTA records instead, e.g. chr8,chr9"""
    workers: int | None = None
    """documents to encode at the same time; default: one per core"""

    def __post_init__(self) -> None:
        expect(bool(self.data), "data", self.data, "at least one source")
        expect(0 <= self.held_out < 1, "held_out", self.held_out, "at least 0 and below 1")
        expect_ranges(self, 1, "workers", "held_out_bytes")


def _show_progress() -> Callable[[Progress], None]:
    """Return a function that shows progress: in place on a terminal, elsewhere as occasional lines."""
    is_live, begin = sys.stderr.isatty(), time.monotonic()
    first, last = None, begin

    def show(now: Progress) -> None:
        nonlocal first, last
        first, moment = first or now, time.monotonic()
        if moment - last < (0.25 if is_live else _SECONDS):
            return
        last, seconds, done = moment, moment - begin, now.done - first.done
        sizes = f"{short(now.done)}B of {short(now.total)}B  {short(now.tokens)} tokens"
        line = f"{sizes}  {short((now.tokens - first.tokens) / seconds)} tokens/s"
        if done:
            line += f"  {timedelta(seconds=round((now.total - now.done) * seconds / done))} left"
        shown, end = (f"\r{line[:79]:79}", "") if is_live else (line, "\n")
        print(shown, end=end, file=sys.stderr, flush=True)

    return show


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 128 + n after signal n."""
    config = command.parse(TokenizeConfig, argv, prog=PROG)
    show, limit = _show_progress(), config.held_out_bytes
    if limit is None and config.held_out_names is None:
        limit = HELD_OUT_BYTES
    with StopRequest("this block of text", "run the same command to resume from the last save") as request:

        def progress(now: Progress) -> bool:
            show(now)
            return request.signal is None

        for spec in config.data:
            expect_outside("out", config.out, spec)
        sources = find_sources(config.data, config.include)
        # Only Linux reports which cores a process may use.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        manifest = tokenize(
            sources,
            data.load_tokenizer(config.tokenizer),
            config.out,
            workers=config.workers or cores,
            rule=HeldOutRule(config.held_out, config.held_out_names, limit),
            options=config.reading,
            progress=progress,
        )
        if sys.stderr.isatty():
            print(file=sys.stderr)
        if manifest is None:
            assert request.signal is not None
            print(f"interrupted; run the same command to resume from {config.out}", file=sys.stderr)
            return 128 + request.signal
    print(summary(config.out, manifest))
    return 0


def summary(out: Path, manifest: Manifest) -> str:
    """Return the counts of both splits, what was skipped or not read, and the next command."""
    lines = [f"{out}: {manifest.dtype} tokens of {manifest.tokenizer.name}"]
    for name, split in manifest.splits.items():
        sizes = f"{split.documents:,} documents, {split.tokens:,} tokens, {split.bytes:,} bytes of text"
        lines.append(f"{name}: {sizes}, {len(split.shards)} shards")
    skipped = describe_counts(manifest.skipped) or "nothing"
    lines.append(f"skipped: {skipped}{advice(manifest.skipped)}")
    files = read_report(out / REPORT)
    if not_read := describe_not_read(files):
        lines.append(f"not read: {not_read}")
    if files:
        lines += [report_table(files), f"every file: {out / REPORT}"]
    words = ["--data", f"tokens:{out}", "--workdir", f"runs/{out.resolve().name}"]
    words += [] if manifest.splits["held_out"].shards else ["--eval-every", "0"]
    lines.append(f"next: based-jax train lm {shlex.join(words)}")
    return "\n".join(lines)
