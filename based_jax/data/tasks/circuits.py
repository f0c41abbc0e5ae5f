"""Circuits (Zoology's code): parity and majority of bits, at the end or at every position.

    0 1 1 0 1 END      parity: 1 at END             majority: 1 at END
    0 1 1 0 1          cumulative parity: 0 1 0 0 1  cumulative majority: 0 1 1 1 1

The tokens are 0, 1 and END = 2. `length` counts all tokens of a row, END among them. (The authors' setting is
one more than that for cumulative parity.)
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from based_jax.data.tasks.sampling import uniform
from based_jax.data.tasks.task import IGNORE, Labels, Task, expect_counts
from based_jax.typing import Array, Int

END = 2


@dataclass(frozen=True)
class _Circuit(Task):
    """Settings of a circuit.

    Attributes:
        num_examples: rows, n.
        length: tokens per row, N.

    Raises:
        ValueError: a setting out of range.
    """

    num_examples: int = 1000
    length: int = 64
    vocab_size: ClassVar[int] = 3

    def __post_init__(self) -> None:
        expect_counts(self, "num_examples", "length")

    @property
    def slices(self) -> dict[str, int | float]:
        """By length."""
        return {"length": self.length}

    def bits(self, rng: Array, count: int) -> Int[Array, "n count"]:
        """Fair bits."""
        return uniform(rng, self.num_examples, count, 2)

    def ended(self, bits: Int[Array, "n count"], answer: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Inputs and labels of rows that end with END, where the answer is due."""
        end = jnp.full((self.num_examples, 1), END, jnp.int32)
        labels = jnp.full_like(bits, IGNORE)
        answer = answer.astype(jnp.int32)[:, None]
        return jnp.concatenate([bits, end], axis=1), jnp.concatenate([labels, answer], axis=1)


class Parity(_Circuit):
    """N - 1 bits and END, whose label is their sum modulo 2."""

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Inputs and labels."""
        bits = self.bits(rng, self.length - 1)
        return self.ended(bits, jnp.sum(bits, axis=1, dtype=jnp.int32) % 2)


class Majority(_Circuit):
    """N - 1 bits and END, whose label is 1 if more than half of them are; a tie is 0."""

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Inputs and labels."""
        bits = self.bits(rng, self.length - 1)
        return self.ended(bits, 2 * jnp.sum(bits, axis=1, dtype=jnp.int32) > self.length - 1)


class CumulativeParity(_Circuit):
    """N bits; each label is the sum modulo 2 so far."""

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Inputs and labels."""
        bits = self.bits(rng, self.length)
        return bits, jnp.cumsum(bits, axis=1, dtype=jnp.int32) % 2


class CumulativeMajority(_Circuit):
    """N bits; each label is 1 if at least half of the bits so far are; a tie is 1."""

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Inputs and labels."""
        bits = self.bits(rng, self.length)
        balance = jnp.cumsum(2 * bits - 1, axis=1, dtype=jnp.int32)
        return bits, (balance >= 0).astype(jnp.int32)
