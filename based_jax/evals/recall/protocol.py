"""How a recall task asks and judges: prompt, left truncation, answer, score (Based, E.3).

prompt     the stored text, its last context - 48 tokens
answer     48 tokens, greedily, up to the first newline
contains   1 if the gold value stands in the answer, whatever its case
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from based_jax.data.tokenizers import Tokenizer
from based_jax.evals.recall.data import Example
from based_jax.validate import expect, expect_choice

CONTEXT = 2048
"""tokens of prompt and answer together"""

ANSWER_TOKENS = 48
"""tokens of an answer"""

CHUNK = 1920
"""tokens of a document in a prompt of FDA"""

PROMPTS = ("stored", "rebuilt")
"""texts of a prompt: as the data have it, or as `rebuild` makes it"""

_SUMMARY = "Summary of information above..."
_SEPARATOR = "<|endoftext|>"  # what the authors' decoding shows for the end of a document


class Prompt(NamedTuple):
    """What a model reads for an example."""

    example: Example
    text: str
    tokens: Int32[np.ndarray, " N"]
    """the end of the text, as much of it as fits"""
    length: int
    """tokens of the whole text"""

    @property
    def truncated(self) -> bool:
        """The beginning is missing."""
        return len(self.tokens) < self.length


def make_prompt(
    example: Example, tokenizer: Tokenizer, *, style: str = "stored", context: int = CONTEXT
) -> Prompt:
    """The tokens of an example's prompt, without a separator in front.

    Args:
        style: "stored" takes the text as it is; "rebuilt" is `rebuild`.
        context: tokens of prompt and answer together; a longer prompt loses its beginning.

    Raises:
        ValueError: an unknown style, or a context too short for a prompt.
    """
    expect_choice("prompt", style, PROMPTS)
    expect(context > ANSWER_TOKENS, "context", context, f"more than the {ANSWER_TOKENS} tokens of an answer")
    text = example.text if style == "stored" else rebuild(example.text, example.key)
    tokens = tokenizer.encode(text)
    return Prompt(example, text, tokens[-(context - ANSWER_TOKENS) :], len(tokens))


def rebuild(text: str, key: str) -> str:
    """SWDE's prompt in a later revision of the authors' task: without the summary of other keys' values.

    Examples:
        >>> rebuild("A film.\\nSummary of information above...\\nyear: 1999\\ndirector:", "director")
        'A film.\\n Director:'
    """
    expect(bool(key), "key", key, "a text that is not empty")
    text = text.partition(_SUMMARY)[0]
    while text.endswith(f"{key}:"):
        text = text.removesuffix(f"{key}:")
    return f"{text} {key[0].upper()}{key[1:]}:"


def chunk_prompts(
    document: str, attributes: Mapping[str, str], tokenizer: Tokenizer, *, chunk: int = CHUNK
) -> Iterator[dict[str, str]]:
    """Rows of a task like FDA: one prompt for every attribute whose value stands in a chunk of a document.

    Args:
        attributes: gold values by key.
        chunk: tokens per chunk; the last one may be shorter.

    Yields:
        ``{"text": "{chunk} \\n {key}:", "key": key, "value": value}``
    """
    expect(chunk >= 1, "chunk", chunk, "at least 1")
    tokens = tokenizer.encode(document)
    for start in range(0, len(tokens), chunk):
        text = tokenizer.decode(tokens[start : start + chunk])
        for key, value in attributes.items():
            if contains(text, value):
                yield {"text": f"{text} \n {key}:", "key": key, "value": value}


def read_answer(tokens: Int32[np.ndarray, " N"], tokenizer: Tokenizer) -> str:
    """The text of generated tokens up to the first newline; negative ones are padding.

    A document's end does not end the answer: the authors' code goes on after it, and shows it.
    """
    tokens = tokens[tokens >= 0]
    ends = np.flatnonzero(tokens == tokenizer.eot)
    pieces = [tokenizer.decode(part) for part in np.split(tokens, ends)]  # decoding leaves the separator out
    return _SEPARATOR.join(pieces).partition("\n")[0]


def newline_tokens(tokenizer: Tokenizer) -> list[int]:
    """Every token with a newline in it: what comes after one is never looked at."""
    return [token for token in range(tokenizer.vocab_size) if "\n" in tokenizer.decode([token])]


def contains(answer: str, value: str) -> bool:
    """Whether `value` stands in `answer`, letter by letter but for the case.

    Examples:
        >>> contains(" sacramento, California", "Sacramento"), contains(" 1,000", "1.000")
        (True, False)
    """
    return re.search(re.escape(value), answer, re.IGNORECASE) is not None
