"""Read the recall tasks' published data, build prompts, and answer them in batches (Based, E.3).

=================  ==========================  =====================
task               on the hub                  columns
=================  ==========================  =====================
swde               hazyresearch/based-swde-v2  text, key, value
fda                hazyresearch/based-fda      text, key, value
squad_completion   hazyresearch/based-squad    text, question, value
=================  ==========================  =====================

A row has a prompt's text, the key that it asks for, and the answer; all are in the split "validation".

prompt     the last context - 48 tokens of the stored text
answer     48 greedy tokens, up to the first newline
contains   1 if the answer contains the gold value, ignoring case

Rows of a batch have different lengths. There are two ways to pad them:

correct    masked padding after each row: no row sees it, so an answer does not depend on the batch
authors    visible separators before each row: to the authors' models these are ordinary tokens, which
           enter convolutions, windows and recurrent states
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int32

from based_jax.data.hub import HUB, load_rows
from based_jax.data.tokenizers import Ids, Tokenizer, decode_after
from based_jax.evals.options import Records, batches
from based_jax.files import is_text, read_json_lines
from based_jax.generate import generate
from based_jax.generate.prompt import bucket
from based_jax.models import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect, expect_choice

_MAX_BYTES = 1 << 30  # of a .jsonl file
TASKS = {
    "swde": ("hazyresearch/based-swde-v2", "key"),
    "fda": ("hazyresearch/based-fda", "key"),
    "squad_completion": ("hazyresearch/based-squad", "question"),
}
"""Task -> its data set on the hub, and its key column."""

CONTEXT = 2048
"""Tokens of prompt and answer together."""

ANSWER_TOKENS = 48
"""Tokens of an answer."""

_SEPARATOR = "<|endoftext|>"  # text of the document separator in the authors' decoding

PADDINGS = ("correct", "authors")
"""Padding of a batch of prompts: without effect on answers, or as in the authors' code."""

Generator: TypeAlias = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Rows of tokens -> their continuations, integers (rows, ANSWER_TOKENS); negative entries after a newline are
padding."""


class Example(NamedTuple):
    """One row."""

    id: int
    """row number in the data, from 0"""
    text: str
    """the prompt as stored"""
    key: str
    """the attribute, or SQuAD's question"""
    value: str
    """the answer"""


def read_examples(task: str, data: str) -> list[Example]:
    """Read all rows of a task.

    Args:
        data: a .jsonl file, "hub" (the published data set) or "hf:NAME" (another one there).

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, a missing column, or a field that is not a text.
        ImportError: the hub without datasets.
    """
    expect_choice("task", task, tuple(TASKS))
    hub, key = TASKS[task]
    if data == "hub" or data.startswith(HUB):
        rows = load_rows(f"{HUB}{hub if data == 'hub' else data.removeprefix(HUB)}:validation")
    else:
        expect(data.endswith(".jsonl"), "data", data, "hub, hf:NAME or a .jsonl file")
        if not Path(data).is_file():
            raise FileNotFoundError(f"data = {data!r}: expected a file, and there is none")
        rows = read_json_lines(data, max_bytes=_MAX_BYTES)
    examples = [_example(index, row, ("text", key, "value"), data) for index, row in enumerate(rows)]
    expect(bool(examples), "data", data, "at least one row")
    return examples


def _example(index: int, row: Any, columns: Sequence[str], data: str) -> Example:
    where = f"{data}, row {index + 1}"
    expect(isinstance(row, Mapping), where, row, "a JSON object")
    missing = [column for column in columns if column not in row]
    wanted = f"columns {', '.join(columns)}; no {', '.join(missing)} here"
    expect(not missing, where, sorted(row), wanted)
    for column in columns:
        expect(is_text(row[column]), f"{where}, {column}", row[column], "a text")
    expect(bool(row["text"]), where, row["text"], "a text that is not empty")
    return Example(index, *(row[column] for column in columns))


class Prompt(NamedTuple):
    """The prompt of an example."""

    example: Example
    tokens: Int32[np.ndarray, " N"]
    """the last tokens of its text, as many as fit"""
    length: int
    """number of tokens of the whole text"""

    @property
    def truncated(self) -> bool:
        """Return whether the prompt was truncated on the left."""
        return len(self.tokens) < self.length


def make_prompt(example: Example, tokenizer: Tokenizer, *, context: int = CONTEXT) -> Prompt:
    """Encode an example's prompt, without a leading separator.

    Args:
        context: tokens of prompt and answer together; a longer prompt is truncated on the left.

    Raises:
        ValueError: a context too short for a prompt.
    """
    expect(context > ANSWER_TOKENS, "context", context, f"more than the {ANSWER_TOKENS} tokens of an answer")
    tokens = tokenizer.encode(example.text)
    return Prompt(example, tokens[-(context - ANSWER_TOKENS) :], len(tokens))


def read_answer(tokens: Int32[np.ndarray, " N"], tokenizer: Tokenizer, prompt: Ids = ()) -> str:
    """Decode the tokens that were generated after `prompt`, up to a newline; negative tokens are padding.

    A document separator does not end the answer: the authors' code continues after it, and includes its text.
    """
    tokens = tokens[tokens >= 0]
    ends = np.flatnonzero(tokens == tokenizer.eot)
    first, *others = np.split(tokens, ends)  # decoding omits the separator
    texts = [decode_after(tokenizer, prompt, first), *map(tokenizer.decode, others)]
    return _SEPARATOR.join(texts).partition("\n")[0]


def newline_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return all tokens that contain a newline, which ends an answer."""
    return [token for token in range(tokenizer.vocab_size) if "\n" in tokenizer.decode([token])]


def contains(answer: str, value: str) -> bool:
    """Return whether `answer` contains `value` literally, ignoring case.

    Examples:
        >>> contains(" sacramento, California", "Sacramento"), contains(" 1,000", "1.000")
        (True, False)
    """
    return re.search(re.escape(value), answer, re.IGNORECASE) is not None


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
    for batch, filled in make_batches(wanted, batch_size, padding):
        if all(prompt.example.id in done for prompt in batch):
            continue
        rows = [prompt.tokens for prompt in filled]
        if padding == "authors":
            width = max(map(len, rows))
            rows = [np.pad(row, (width - len(row), 0), constant_values=tokenizer.eot) for row in rows]
        made = zip(batch, generator(rows), strict=False)
        yield records.add([judge(*pair, tokenizer) for pair in made])


def make_batches(
    prompts: Iterable[Prompt], batch_size: int, padding: str
) -> Iterator[tuple[list[Prompt], list[Prompt]]]:
    """Form `batches`, longest prompts first.

    With correct padding, the prompts of a batch have the same rounded length, so that a row has the same
    shape whatever else is in the batch; the authors cut the sorted list into batches.
    """
    ordered = sorted(prompts, key=lambda prompt: (-prompt.length, prompt.example.text))
    for _, alike in groupby(ordered, lambda prompt: padding == "correct" and bucket(len(prompt.tokens))):
        yield from batches(list(alike), batch_size)


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
