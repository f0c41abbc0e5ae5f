"""Build prompts and score answers of the recall tasks (Based, E.3).

prompt     the last context - 48 tokens of the stored text
answer     48 greedy tokens, up to the first newline
contains   1 if the answer contains the gold value, ignoring case

Prompts can show the document once or several times ("Just read twice", 2407.05483), so that the model knows
what it is asked for when it reads the document. `text` is the stored prompt, and `document` is that of SWDE
and FDA without its question and SWDE's summary:

    once      SWDE, FDA    "{document}. {Key}:"
              SQuAD        "{text}"
    twice     SWDE, FDA    "Information about {Key}. {document}.\\n{document}. {Key}:"
              SQuAD        "{question} {passage}\\n{text}"

A document is first cut to a number of tokens around the first mention of the key or the value, because a cut
on the left would shorten only the first copy. The authors' code does the same, also to documents that would
fit. It removes spaces and full stops in a different order for each task; here there is one order for all.
"""

import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from based_jax.data.tokenizers import Ids, Tokenizer, decode_after, decode_slice
from based_jax.evals.recall.data import Example
from based_jax.validate import expect

DOCUMENT_TOKENS = 950
"""Tokens of one copy of a document in the paper's Table 1: 1,000 less 50 for the answer."""

SUMMARY = "Summary of information above..."
"""Text before SWDE's summary of other keys."""


def repeat_context(
    example: Example, tokenizer: Tokenizer, copies: int, document_tokens: int = DOCUMENT_TOKENS
) -> str:
    """Return the prompt of an example with `copies` of its document.

    Args:
        example: one with a passage is SQuAD's, whose stored text is the last copy.
        copies: 2 for the paper's prompt, 1 for the prompt that the paper compares it with.
        document_tokens: tokens of one copy, see `cut_around`. SQuAD's stored text is never cut, because the
            statement to complete is at its end.

    Raises:
        ValueError: numbers below 1, or an empty key.
    """
    expect(copies >= 1, "repeat_context", copies, "at least 1")
    expect(document_tokens >= 1, "document_tokens", document_tokens, "at least 1")
    key, value = example.key, example.value
    if example.passage is not None:
        passage = cut_around(example.passage.partition("Question:")[0], (value,), tokenizer, document_tokens)
        shown = "\n".join([*[passage.strip()] * (copies - 1), example.text.strip()])
        return shown if copies == 1 else f"{key} {shown}"
    document = cut_around(_document(example.text, key), (key, value), tokenizer, document_tokens)
    shown = "\n".join([document.strip().strip(".").strip() + "."] * copies)
    expect(bool(key), "key", key, "a text that is not empty")
    cue = key[0].upper() + key[1:]
    return f"{shown} {cue}:" if copies == 1 else f"Information about {cue}. {shown} {cue}:"


def cut_around(text: str, mentions: tuple[str, ...], tokenizer: Tokenizer, size: int) -> str:
    """Return at most `size` tokens of `text`: up to half of them before its first mention, the others after.

    Args:
        mentions: texts to find, ignoring case. If none occurs, the end of `text` is returned.

    Examples:
        >>> from based_jax.data.tokenizers import ByteTokenizer
        >>> cut_around("a b c d e f g", ("d", "f"), ByteTokenizer(), 5)
        'c d e'
    """
    found = [re.search(re.escape(mention), text, re.IGNORECASE) for mention in mentions]
    position = min((match.start() for match in found if match), default=len(text))
    start = max(0, len(tokenizer.encode(text[:position])) - size // 2)
    return decode_slice(tokenizer, tokenizer.encode(text), start, start + size)


def _document(text: str, key: str) -> str:
    """Return a stored text without its summary and the questions at its end."""
    text, question = text.partition(SUMMARY)[0].strip(), f"{key}:"
    while text.lower().endswith(question.lower()):
        text = text[: -len(question)].rstrip()
    return text


CONTEXT = 2048
"""Tokens of prompt and answer together."""

ANSWER_TOKENS = 48
"""Tokens of an answer."""

_SEPARATOR = "<|endoftext|>"  # text of the document separator in the authors' decoding


class Prompt(NamedTuple):
    """The prompt of an example."""

    example: Example
    text: str
    tokens: Int32[np.ndarray, " N"]
    """the last tokens of the text, as many as fit"""
    length: int
    """number of tokens of the whole text"""

    @property
    def truncated(self) -> bool:
        """Return whether the prompt was truncated on the left."""
        return len(self.tokens) < self.length


def make_prompt(
    example: Example,
    tokenizer: Tokenizer,
    *,
    context: int = CONTEXT,
    copies: int | None = None,
    document_tokens: int = DOCUMENT_TOKENS,
) -> Prompt:
    """Encode an example's prompt, without a leading separator.

    Args:
        context: tokens of prompt and answer together; a longer prompt is truncated on the left.
        copies, document_tokens: if `copies` is given, use `repeat_context` instead of the stored text.

    Raises:
        ValueError: a context too short for a prompt.
    """
    expect(context > ANSWER_TOKENS, "context", context, f"more than the {ANSWER_TOKENS} tokens of an answer")
    text = example.text
    if copies is not None:
        text = repeat_context(example, tokenizer, copies, document_tokens)
    tokens = tokenizer.encode(text)
    return Prompt(example, text, tokens[-(context - ANSWER_TOKENS) :], len(tokens))


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
