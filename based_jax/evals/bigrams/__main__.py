"""Count the bigrams of a training corpus: ``based-jax eval bigrams --data stdlib --out FILE``.

The stream is that of training, ``EOT d1 EOT d2 ... dn EOT``, so every pair of an input and its target counts
once. The counts so far are in memory, and in OUT.partial, a count file whose source is the position in the
corpus: finished parts, and finished documents of the next part.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from based_jax import command
from based_jax.data import Tokenizer
from based_jax.data.shards.reader import load_data_tokenizer
from based_jax.evals.bigrams.table import BigramTable, stream_keys
from based_jax.evals.options import progress, spelling
from based_jax.evals.text import TextOptions, open_text
from based_jax.files import parse_json
from based_jax.stop_request import StopRequest
from based_jax.validate import expect

PROG = "based-jax eval bigrams"
_BUFFER = 1 << 23
"""Tokens to sort at once."""
_SAVE_EVERY = 100_000_000
"""Tokens between saves of the progress."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Count how often each pair of neighbouring tokens occurs, for the slices of eval perplexity.

    After an interruption or kill, the same command resumes from OUT.partial.
    """

    out: Path
    """count file to write (safetensors: keys, counts, metadata); it must not exist"""
    text: Annotated[TextOptions, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TextOptions)
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory;
    default: tokens:DIR's, else byte"""

    def __post_init__(self) -> None:
        expect(not self.out.exists(), "out", str(self.out), "a file that does not exist yet")
        expect(self.out.parent.is_dir(), "out", str(self.out), "a file in an existing directory")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 130 after an interruption."""
    options = command.parse(Options, argv, prog=PROG)
    tokenizer = load_data_tokenizer([options.text.data or ""], options.tokenizer)
    with StopRequest("this document", "run the same command to resume from the last save") as request:
        table = count(
            options.text,
            tokenizer,
            options.out,
            interrupted=lambda: request.signal is not None,
        )
    if table is None:
        print(f"interrupted: run the same command to resume from {_partial(options.out)}", file=sys.stderr)
        return 130
    sizes = f"{table.tokens:,} tokens, {len(table):,} distinct bigrams, vocabulary {table.vocab_size:,}"
    print(f"{options.out}: {sizes}")
    return 0


def count(
    text: TextOptions,
    tokenizer: Tokenizer,
    out: Path,
    *,
    interrupted: Callable[[], bool] = lambda: False,
) -> BigramTable | None:
    """Count the bigrams of a corpus into a count file, resuming an interrupted call.

    Args:
        out: count file; an unfinished count is kept in ``OUT.partial``.
        interrupted: called after each document; if it returns True, the call saves and ends.

    Returns:
        The counts, or None if interrupted.

    Raises:
        ValueError: invalid data, no tokens, or an interrupted count of other data.
    """
    parts, checksum = open_text(text, tokenizer)
    job = {"text": checksum, "tokenizer": tokenizer.name}
    job |= {"vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot, "spelling": spelling(tokenizer)}
    partial = _partial(out)
    table, (first_part, first_document) = _resume(partial, job)
    saved, pending, size = table.tokens, list[np.ndarray](), 0
    with progress("counting", None, "tokens") as advance:
        for part in range(first_part, len(parts)):
            stretches = parts[part]()
            for index in range(first_document if part == first_part else 0, len(stretches)):
                pending.append(stream_keys(stretches[index](), table.vocab_size))
                size += pending[-1].size
                advance(pending[-1].size)
                is_stopped = interrupted()
                if size < _BUFFER and not is_stopped:
                    continue
                table, pending, size = table.add(np.concatenate(pending)), [], 0
                if is_stopped or table.tokens - saved >= _SAVE_EVERY:
                    saved = table.tokens
                    source = json.dumps({"job": job, "place": [part, index + 1]})
                    dataclasses.replace(table, source=source).save(partial)
                if is_stopped:
                    return None
    if pending:
        table = table.add(np.concatenate(pending))
    expect(table.tokens > 0, "data", text.data, "at least one document with text")
    table = dataclasses.replace(table, source=f"{text}, tokenizer {tokenizer.name}")
    table.save(out)
    partial.unlink(missing_ok=True)
    return table


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _resume(partial: Path, job: dict) -> tuple[BigramTable, tuple[int, int]]:
    """Return the counts of an interrupted call, or none, and their position."""
    if not partial.exists():
        return BigramTable.of_stream(np.zeros(0, np.int32), job["vocab_size"]), (0, 0)
    table = BigramTable.load(partial)
    saved = parse_json(table.source, str(partial))
    for key, value in job.items():
        before = saved["job"].get(key)
        wanted = f"{before!r}, as in the interrupted count in {partial}; delete it to start again"
        expect(before == value, key, value, wanted)
    return table, saved["place"]


if __name__ == "__main__":
    command.run(PROG, main)
