"""Biases: numbers added to the logits of chosen tokens before all other settings apply.

A row has up to `MAX_BIASED` of them, as an array of tokens and an array of values that are scattered into its
logits. Both always have that size, so that one compiled program serves rows with any biases.
"""

import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import INT32_MAX, expect

MAX_BIASED = 300
"""most tokens of a row that may have a bias"""
LARGEST_BIAS = 100
"""as in OpenAI's API: -100 bans a token, 100 makes it the only one, unless logits differ by as much"""


class LogitBias(Mapping[int, float]):
    """Map tokens to biases; hashable.

    Raises:
        ValueError: not such a mapping, more than `MAX_BIASED` tokens, or a bias beyond `LARGEST_BIAS`.
    """

    def __init__(self, biases: Any) -> None:
        expect(isinstance(biases, Mapping), "logit_bias", biases, "a mapping from tokens to numbers")
        expect(len(biases) <= MAX_BIASED, "logit_bias", len(biases), f"at most {MAX_BIASED} tokens")
        for token, value in biases.items():
            whole = isinstance(token, numbers.Integral) and not isinstance(token, bool)
            known = whole and 0 <= int(token) <= INT32_MAX
            expect(known, "logit_bias", token, "tokens: integers, at least 0")
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            good = number and abs(float(value)) <= LARGEST_BIAS
            expect(good, "logit_bias", value, f"numbers from {-LARGEST_BIAS} to {LARGEST_BIAS}")
        self._biases = {int(token): float(biases[token]) for token in sorted(biases)}

    def __getitem__(self, token: int) -> float:
        return self._biases[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._biases)

    def __len__(self) -> int:
        return len(self._biases)

    def __hash__(self) -> int:
        return hash(tuple(self._biases.items()))

    def __repr__(self) -> str:
        return repr(self._biases)


class Biases(NamedTuple):
    """The biases of a batch: an argument of compiled programs."""

    tokens: Int[Array, "B K"]
    """K = `MAX_BIASED`, the unused ones 0"""
    values: Float[Array, "B K"]
    """0 where unused"""
    given: Bool[Array, " B"]
    """whether each row has any; if no row has, nothing is added"""

    @classmethod
    def of(cls, rows: Sequence[Mapping[int, float] | None]) -> "Biases":
        """Stack the biases of each row."""
        tokens, values = np.zeros((len(rows), MAX_BIASED), np.int32), np.zeros((len(rows), MAX_BIASED))
        for row, biases in enumerate(rows):
            given = biases or {}
            tokens[row, : len(given)], values[row, : len(given)] = list(given), list(given.values())
        given = np.array([bool(biases) for biases in rows])
        return cls(jnp.asarray(tokens), jnp.asarray(values.astype(np.float32)), jnp.asarray(given))

    def added(self, logits: Float[Array, "B vocab"]) -> Float[Array, "B vocab"]:
        """Return the logits with the biases added."""
        rows = jnp.arange(logits.shape[0])[:, None]
        return logits.at[rows, self.tokens].add(self.values.astype(logits.dtype))


def expect_known(biases: Mapping[int, float] | None, vocab_size: int) -> None:
    """Check that all biased tokens are in the vocabulary."""
    most = max(biases or (), default=0)
    expect(most < vocab_size, "logit_bias", most, f"tokens in [0, {vocab_size})")
