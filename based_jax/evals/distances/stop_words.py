"""Which tokens are stop words or punctuation (Zoology, Figures 4 and 5)."""

import string
import unicodedata
from collections.abc import Collection
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from based_jax.data import Tokenizer
from based_jax.validate import expect


def read_words(path: Path) -> frozenset[str]:
    """The words of a file with one per line, in lower case; empty lines do not count."""
    if not path.is_file():
        raise FileNotFoundError(f"stop_words = {str(path)!r}: expected a file with a word per line")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"stop_words = {str(path)!r}: expected UTF-8 text ({error})") from error
    words = frozenset(line.strip().lower() for line in lines) - {""}
    expect(bool(words), "stop_words", str(path), "at least one word")
    return words


def stop_tokens(tokenizer: Tokenizer, words: Collection[str]) -> Bool[np.ndarray, " V"]:
    """By token id: whether its text is one of `words`, or punctuation.

    Spaces around the text and its case do not count, so that " The" of a byte-pair vocabulary is "the". Parts
    of words count as what they look like. The document separator has no text and is neither.
    """
    texts = (tokenizer.decode([token]).strip().lower() for token in range(tokenizer.vocab_size))
    return np.array([text in words or _is_punctuation(text) for text in texts])


def _is_punctuation(text: str) -> bool:
    """Whether there is text, all of it ASCII's punctuation (as NLTK's users leave out) or Unicode's."""
    return text != "" and all(
        letter in string.punctuation or unicodedata.category(letter).startswith("P") for letter in text
    )
