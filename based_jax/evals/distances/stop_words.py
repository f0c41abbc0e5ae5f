"""Find tokens that are stop words or punctuation (Zoology, Figures 4 and 5)."""

import string
import unicodedata
from collections.abc import Collection
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from based_jax.data import Tokenizer
from based_jax.validate import expect


def read_words(path: Path) -> frozenset[str]:
    """Read a file with one word per line, in lower case; empty lines are skipped."""
    if not path.is_file():
        raise FileNotFoundError(f"stop_words = {str(path)!r}: expected a file with a word per line")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"stop_words = {str(path)!r}: expected UTF-8 text ({error})") from error
    words = frozenset(line.strip().lower() for line in lines) - {""}
    expect(bool(words), "stop_words", str(path), "at least one word")
    return words


def stop_tokens(tokenizer: Tokenizer, words: Collection[str]) -> Bool[np.ndarray, " V"]:
    """Return a mask over token ids, True if a token's text is one of `words`, or punctuation.

    Surrounding spaces and case are ignored, so that " The" of a byte-pair vocabulary is "the". Subwords are
    treated like words. The document separator has no text and is neither.
    """
    texts = (tokenizer.decode([token]).strip().lower() for token in range(tokenizer.vocab_size))
    return np.array([text in words or _is_punctuation(text) for text in texts])


def _is_punctuation(text: str) -> bool:
    """Return whether a nonempty text consists of ASCII or Unicode punctuation."""
    return text != "" and all(
        letter in string.punctuation or unicodedata.category(letter).startswith("P") for letter in text
    )
