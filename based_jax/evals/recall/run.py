"""Answer the prompts of a recall task in batches.

Rows of a batch have different lengths. There are two ways to pad them:

    correct   masked padding after each row: no row sees it, so an answer does not depend on the batch
    authors   visible separators before each row: to the authors' models these are ordinary tokens, which
              enter convolutions, windows and recurrent states
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int32

from based_jax.data.tokenizers import Tokenizer
from based_jax.evals.options import Records
from based_jax.evals.recall.protocol import ANSWER_TOKENS, Prompt, contains, newline_tokens, read_answer
from based_jax.generate import generate
from based_jax.generate.prompt import bucket
from based_jax.models import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect, expect_choice

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
    records: Records,
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
    done = records.by_id
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
        yield records.add([judge(*pair, tokenizer) for pair in zip(batch, tokens, strict=True)])


def make_batches(prompts: Iterable[Prompt], batch_size: int, padding: str) -> Iterator[list[Prompt]]:
    """Form batches, longest prompts first.

    With correct padding, the prompts of a batch have the same rounded length, so that a row has the same
    shape whatever else is in the batch; the authors cut the sorted list into batches.
    """
    ordered = sorted(prompts, key=lambda prompt: (-prompt.length, prompt.example.text))
    for _, alike in groupby(ordered, lambda prompt: padding == "correct" and bucket(len(prompt.tokens))):
        group = list(alike)
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]


def judge(prompt: Prompt, tokens: Int32[np.ndarray, " N"], tokenizer: Tokenizer) -> dict[str, Any]:
    """Score an answer and return its record.

    Returns:
        `id`, the row number in the data; `tokens` of the prompt before truncation; whether it was `truncated`
        on the left; the gold value, `answer`; the model's answer up to the first newline, `generated`; and
        `score`, 1 if it contains the value.
    """
    text = read_answer(tokens, tokenizer, prompt.tokens)
    return {
        "id": prompt.example.id,
        "tokens": prompt.length,
        "truncated": prompt.truncated,
        "answer": prompt.example.value,
        "generated": text,
        "score": int(contains(text, prompt.example.value)),
    }


def summarize(records: Iterable[Mapping[str, Any]]) -> dict[str, float | int]:
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
