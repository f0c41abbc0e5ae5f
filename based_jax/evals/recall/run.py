"""Answer the prompts of a recall task in batches.

Rows of a batch have different lengths. There are two ways to pad them:

    correct   masked padding after each row: no row sees it, so an answer does not depend on the batch
    authors   visible separators before each row: to the authors' models these are ordinary tokens, which
              enter convolutions, windows and recurrent states
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import sqrt
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import numpy as np
from jaxtyping import Int32

from based_jax.data.tokenizers import Tokenizer
from based_jax.evals.recall.protocol import ANSWER_TOKENS, Prompt, contains, newline_tokens, read_answer
from based_jax.files import JsonLines
from based_jax.generate import generate
from based_jax.generate.prompt import bucket
from based_jax.models import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect, expect_choice


class Record(TypedDict):
    """The result of one example."""

    id: int
    """row number in the data"""
    tokens: int
    """tokens of the prompt before truncation"""
    truncated: bool
    """whether the prompt was truncated on the left"""
    answer: str
    """gold value"""
    generated: str
    """the model's answer, up to the first newline"""
    score: int
    """1 if the generated text contains the value"""
    run: str
    """digest of everything that affects the answers"""


class RecordFile:
    """The records so far, in a file or in memory.

    Args:
        path: a .jsonl file, created if needed; see `JsonLines` for damaged lines. None for memory only.
        run: see `Record`.

    Raises:
        ValueError: the file has records of another run.
    """

    def __init__(self, path: Path | None, run: str):
        self.run = run
        self.records: dict[int, Record] = {}
        self._file: JsonLines | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = JsonLines(path, {"id": int, "run": str})
            rows: Any = self._file.rows
            self.records = {row["id"]: row for row in rows}
            expected = (
                "a new file or one of this run; it is of another model, tokenizer, data, prompt, context, "
                "dtype or padding (or, with the authors' padding, batch size or limit)"
            )
            expect(all(row["run"] == run for row in rows), "records", str(path), expected)

    def add(self, records: Iterable[Record]) -> int:
        """Append the records that are new, and return their number."""
        new: list[Any] = [record for record in records if record["id"] not in self.records]
        self.records.update({record["id"]: record for record in new})
        if self._file is not None:
            self._file.append(new)
        return len(new)


PADDINGS = ("correct", "authors")
"""Padding of a batch of prompts: without effect on answers, or as in the authors' code."""

Generator: TypeAlias = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Rows of tokens -> their continuations, integers (rows, ANSWER_TOKENS); negative entries after a newline are
padding."""


def greedy(model: LanguageModel, params: Params, tokenizer: Tokenizer) -> Generator:
    """Return a generator that decodes greedily and ends rows at a newline."""
    size = model.config.vocab_size
    expect(tokenizer.vocab_size <= size, "tokenizer.vocab_size", tokenizer.vocab_size, f"at most {size}")
    stops = newline_tokens(tokenizer)

    def continue_(rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(generate(model, params, rows, ANSWER_TOKENS, stop_tokens=stops, pad_token=-1))

    return continue_


def answer(
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer,
    generator: Generator,
    records: RecordFile,
    *,
    batch_size: int = 8,
    padding: str = "correct",
) -> Iterator[int]:
    """Answer every prompt that has no record yet, the longest first.

    Yields:
        After each batch, its number of new records.
    """
    expect(batch_size >= 1, "batch_size", batch_size, "at least 1")
    expect_choice("padding", padding, PADDINGS)
    done = records.records
    # With the authors' padding a row depends on its batch, so resuming must form the same batches.
    wanted = [prompt for prompt in prompts if padding == "authors" or prompt.example.id not in done]
    for batch in make_batches(wanted, batch_size, padding):
        if all(prompt.example.id in done for prompt in batch):
            continue
        rows = [prompt.tokens for prompt in batch]
        if padding == "authors":
            width = max(map(len, rows))
            rows = [np.pad(row, (width - len(row), 0), constant_values=tokenizer.eot) for row in rows]
        # Pad the last batch with discarded rows, so that one batch size compiles one program.
        tokens = generator([*rows, *rows[-1:] * (batch_size - len(rows))])[: len(rows)]
        yield records.add([judge(*pair, tokenizer, records.run) for pair in zip(batch, tokens, strict=True)])


def make_batches(prompts: Iterable[Prompt], batch_size: int, padding: str) -> Iterator[list[Prompt]]:
    """Form batches, longest prompts first.

    With correct padding, the prompts of a batch have the same rounded length, so that a row has the same
    shape whatever else is in the batch; the authors cut the sorted list into batches.
    """
    ordered = sorted(prompts, key=lambda prompt: (-prompt.length, prompt.text))
    groups = [ordered]
    if padding == "correct":
        groups = [list(group) for _, group in groupby(ordered, lambda prompt: bucket(len(prompt.tokens)))]
    for group in groups:
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]


def judge(prompt: Prompt, tokens: Int32[np.ndarray, " N"], tokenizer: Tokenizer, run: str) -> Record:
    """Score an answer and return its record."""
    text = read_answer(tokens, tokenizer, prompt.tokens)
    return Record(
        id=prompt.example.id,
        tokens=prompt.length,
        truncated=prompt.truncated,
        answer=prompt.example.value,
        generated=text,
        score=int(contains(text, prompt.example.value)),
        run=run,
    )


def summarize(records: Iterable[Record]) -> dict[str, float | int]:
    """Return ``contains`` in percent, its standard error, and counts of examples and truncated prompts."""
    rows = list(records)
    scores = np.array([row["score"] for row in rows], float)
    error = scores.std(ddof=1) / sqrt(len(rows)) if len(rows) > 1 else 0.0
    return {
        "contains": 100 * float(scores.mean()),
        "standard_error": 100 * float(error),
        "examples": len(rows),
        "truncated": sum(row["truncated"] for row in rows),
    }
