"""Build prompts and score answers of the recall tasks (Based, E.3).

prompt     the last context - 48 tokens of the stored text
answer     48 greedy tokens, up to the first newline
contains   1 if the answer contains the gold value, ignoring case
"""

import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from based_jax.data.tokenizers import Ids, Tokenizer, decode_after
from based_jax.evals.recall.data import Example
from based_jax.validate import expect

CONTEXT = 2048
"""Tokens of prompt and answer together."""

ANSWER_TOKENS = 48
"""Tokens of an answer."""

_SEPARATOR = "<|endoftext|>"  # text of the document separator in the authors' decoding


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
