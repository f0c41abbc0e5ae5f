"""Circuit tasks (Zoology's code): parity and majority, final or cumulative; and products of permutations.

    0 1 1 0 1 END      parity: 1 at END             majority: 1 at END
    0 1 1 0 1          cumulative parity: 0 1 0 0 1  cumulative majority: 0 1 1 1 1
    3 1 4 1 5 END      vocabulary's majority: 1 at END

The tokens are 0, 1 and END = 2; for the vocabulary's majority the symbols 1 ... V - 1 and END = 0. `length`
counts all tokens of a row, including END. (For cumulative parity, Zoology's setting is larger by one.)
"""

import abc
import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.data.tasks.sampling import one_of, uniform
from based_jax.data.tasks.task import IGNORE, Labels, Task
from based_jax.typing import Array, Int
from based_jax.validate import expect

END = 2


@dataclass(frozen=True)
class _Circuit(Task):
    num_examples: int = 1000
    length: int = 64
    vocab_size: ClassVar[int] = 3
    sliced_by = ("length",)
    ends: ClassVar[bool] = False

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw bits, and label each of them, or END, with the answer so far; see `Task.draw`."""
        bits = uniform(rng, self.num_examples, self.length - self.ends, 2)
        answers = self._answers(bits)
        return _ended(bits, END, jnp.pad(answers, ((0, 0), (1, 0)))[:, -1]) if self.ends else (bits, answers)

    @abc.abstractmethod
    def _answers(self, bits: Int[Array, "n count"]) -> Labels: ...


class CumulativeParity(_Circuit):
    """Parity of N bits at every position: each label is the sum modulo 2 so far."""

    def _answers(self, bits: Int[Array, "n count"]) -> Labels:
        return jnp.cumsum(bits, axis=1, dtype=jnp.int32) % 2


class CumulativeMajority(_Circuit):
    """Majority of N bits at every position: each label is 1 if at least half of the bits so far are 1."""

    def _answers(self, bits: Int[Array, "n count"]) -> Labels:
        balance = jnp.cumsum(2 * bits - 1, axis=1, dtype=jnp.int32)
        return (balance >= self.ends).astype(jnp.int32)


class Parity(CumulativeParity):
    """Parity of N - 1 bits: their sum modulo 2 is the label at END."""

    ends = True


class Majority(CumulativeMajority):
    """Majority of N - 1 bits: the label at END is 1 if more than half of them are 1; a tie is 0."""

    ends = True


@dataclass(frozen=True)
class VocabMajority(Task):
    """Majority of N - 1 symbols: the label at END = 0 is the most frequent symbol, which is always unique.

    The symbols are drawn uniformly. A tie is broken by writing one of the tied symbols, drawn at random, over
    one of the other tokens, drawn at random, so every token and the label are uniform over the symbols. (In
    Zoology's code the smallest id wins. With large vocabularies most rows have ties, and it is a good guess:
    correct in 79% of rows of 64 tokens with V = 8192, compared with 2% here.)
    """

    vocab_size: int = 16
    num_examples: int = 1000
    length: int = 64
    sliced_by = ("vocab_size", "length")

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.vocab_size >= 3, "vocab_size", self.vocab_size, "at least 3, END and two symbols")
        expect(self.length >= 2, "length", self.length, "at least 2, a symbol and END")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw symbols, END, and the most frequent symbol as the label of END; see `Task.draw`."""
        of_symbols, of_ties, of_positions = jax.random.split(rng, 3)
        symbols = 1 + uniform(of_symbols, self.num_examples, self.length - 1, self.vocab_size - 1)
        positions = jnp.arange(self.length - 1, dtype=jnp.int32)
        # After sorting, a symbol is a run of equal tokens; the last tokens of the longest runs rank highest.
        ordered = jnp.sort(symbols, axis=1)
        starts = jnp.where(ordered != jnp.roll(ordered, 1, axis=1), positions, 0)
        ranks = positions - lax.cummax(starts, axis=1)
        lasts = ranks == jnp.max(ranks, axis=1, keepdims=True)
        most = jnp.take_along_axis(ordered, one_of(of_ties, lasts), axis=1)
        is_tied = jnp.sum(lasts, axis=1, keepdims=True) > 1
        overwritten = is_tied & (positions == one_of(of_positions, symbols != most))
        return _ended(jnp.where(overwritten, most, symbols), 0, most[:, 0])


@dataclass(frozen=True)
class Permutations(Task):
    """State tracking: products of permutations (Merrill et al. 2024, 2404.08819, section 5: word problems).

    Tokens are permutations of k items, the k! ids in lexicographic order. A label is the product so far, the
    last token applied last. Degree 2 is parity after every bit, 3 is S3, solvable, and 5 is S5, whose word
    problem is NC1-complete. (Grazzi et al. 2024, 2411.12537, has them for linear recurrences.)

    Attributes:
        degree: items that are permuted, 2 to 6.
    """

    num_examples: int = 1000
    length: int = 16
    degree: int = 5
    sliced_by = ("length", "degree")

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(2 <= self.degree <= 6, "degree", self.degree, "from 2 to 6")

    @property
    def vocab_size(self) -> int:
        """Return the number of permutations."""
        return math.factorial(self.degree)

    def products(self) -> np.ndarray:
        """Return the id of "a, then b" for the E permutations, int32 (E, E)."""
        elements = np.array([*itertools.permutations(range(self.degree))])
        weights = self.degree ** np.arange(self.degree)[::-1]
        codes = elements[:, elements].swapaxes(0, 1) @ weights
        return np.searchsorted(elements @ weights, codes).astype(np.int32)

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw permutations, with the products so far as labels; see `Task.draw`."""
        tokens, table = uniform(rng, self.num_examples, self.length, self.vocab_size), self.products()
        return tokens, lax.associative_scan(lambda a, b: jnp.asarray(table)[a, b], tokens, axis=1)


def _ended(tokens: Int[Array, "n count"], end: int, answer: Array) -> tuple[Int[Array, "n N"], Labels]:
    """Return inputs and labels of rows that end with `end`, the position of the answer."""
    ends = jnp.full((len(tokens), 1), end, jnp.int32)
    labels = jnp.full_like(tokens, IGNORE)
    answer = answer.astype(jnp.int32)[:, None]
    return jnp.concatenate([tokens, ends], axis=1), jnp.concatenate([labels, answer], axis=1)
