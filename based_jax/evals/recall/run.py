"""Answer the prompts of a recall task in batches.

Rows of a batch have different lengths. Two ways to pad them:

    correct   after each row and masked: no row sees padding, so an answer does not depend on the batch
    authors   separators before each row, visible: to their models these are ordinary tokens, which enter
              convolutions, windows and recurrent states
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Int32

from based_jax.data.tokenizers import Tokenizer
from based_jax.evals.recall.protocol import ANSWER_TOKENS, Prompt, contains, newline_tokens, read_answer
from based_jax.evals.recall.records import Record, RecordFile
from based_jax.generate import generate
from based_jax.generate.prompt import bucket
from based_jax.models import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect, expect_choice

PADDINGS = ("correct", "authors")
"""How prompts of a batch are padded: without effect on the answers, or as the authors' code does."""

Generator: TypeAlias = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Rows of tokens to their continuations, integers (rows, ANSWER_TOKENS); what comes after a newline may be
negative, which is nothing."""


def greedy(model: LanguageModel, params: Params, tokenizer: Tokenizer) -> Generator:
    """The most likely tokens; rows end at a newline."""
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
        after each batch, how many new records it made.
    """
    expect(batch_size >= 1, "batch_size", batch_size, "at least 1")
    expect_choice("padding", padding, PADDINGS)
    done = records.records
    # The authors' batches stay what they were before an interruption: who stands beside whom matters.
    wanted = [prompt for prompt in prompts if padding == "authors" or prompt.example.id not in done]
    for batch in make_batches(wanted, batch_size, padding):
        if all(prompt.example.id in done for prompt in batch):
            continue
        rows = [prompt.tokens for prompt in batch]
        if padding == "authors":
            width = max(map(len, rows))
            rows = [np.pad(row, (width - len(row), 0), constant_values=tokenizer.eot) for row in rows]
        # One batch size, one program: the last batch is filled up with rows that are thrown away.
        tokens = generator([*rows, *rows[-1:] * (batch_size - len(rows))])[: len(rows)]
        yield records.add([judge(*pair, tokenizer, records.run) for pair in zip(batch, tokens, strict=True)])


def make_batches(prompts: Iterable[Prompt], batch_size: int, padding: str) -> Iterator[list[Prompt]]:
    """Batches, the longest prompts first.

    With correct padding the prompts of a batch are rounded up to the same length when they are read, so that
    a row is computed with its own shape whatever its neighbours; the authors cut the sorted list as it comes.
    """
    ordered = sorted(prompts, key=lambda prompt: (-prompt.length, prompt.text))
    groups = [ordered]
    if padding == "correct":
        groups = [list(group) for _, group in groupby(ordered, lambda prompt: bucket(len(prompt.tokens)))]
    for group in groups:
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]


def judge(prompt: Prompt, tokens: Int32[np.ndarray, " N"], tokenizer: Tokenizer, run: str) -> Record:
    """The record of an answer."""
    text = read_answer(tokens, tokenizer)
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
    """``contains`` in percent, its standard error, and the numbers of examples and of truncated prompts."""
    rows = list(records)
    scores = np.array([row["score"] for row in rows], float)
    error = scores.std(ddof=1) / sqrt(len(rows)) if len(rows) > 1 else 0.0
    return {
        "contains": 100 * float(scores.mean()),
        "standard_error": 100 * float(error),
        "examples": len(rows),
        "truncated": sum(row["truncated"] for row in rows),
    }
