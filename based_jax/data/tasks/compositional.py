"""Compositional MQAR (Zoology's code): a key is two tokens, and only both together determine the value.

    a1 b2 v1  a1 b1 v2  a2 b1 v3  a2 b2 v4  .  .  a2 b1  .  .  .  a1 b2  .  ...        inputs
                                                     v3              v1                labels

The D = s * s keys are all combinations of s first and s second components, in random order. First components
are drawn from the ids 1 ... V/3 - 1, second ones from V/3 ... 2V/3 - 1, values from 2V/3 ... V - 1. Queries
begin at position 3 D + 3 g, with slots g as in MQAR.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.layout import expect_rows, filler, insert_queries, interleave
from based_jax.data.tasks.sampling import distinct, words
from based_jax.data.tasks.task import Labels, Task, expect_counts
from based_jax.typing import Array, Int
from based_jax.validate import expect


@dataclass(frozen=True)
class Compositional(Task):
    """Compositional recall.

    Attributes:
        length: at least 6 num_pairs.
        num_pairs: D, keys of two tokens, a square number; also queries.
    """

    vocab_size: int = 8192
    num_examples: int = 1000
    length: int = 64
    num_pairs: int = 4
    power: float = 0.01
    random_fill: bool = True

    def __post_init__(self) -> None:
        expect_counts(self, "vocab_size", "num_examples", "length", "num_pairs")
        side = math.isqrt(self.num_pairs)
        expect(side * side == self.num_pairs, "num_pairs", self.num_pairs, "a square number")
        expect_rows(self, 6 * self.num_pairs, "6 * num_pairs")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw contexts of (first, second, value) triples and queries of two tokens; see `Task.draw`."""
        of_components, of_samples, of_filler = jax.random.split(rng, 3)
        n, pairs, side = self.num_examples, self.num_pairs, math.isqrt(self.num_pairs)
        third, two_thirds = self.vocab_size // 3, 2 * self.vocab_size // 3
        for_first, for_second = words(of_components, 2, side, n)
        for_order, for_values, for_slots = words(of_samples, 3, pairs, n)
        first = distinct(for_first, np.arange(1, third))
        second = distinct(for_second, np.arange(third, two_thirds))
        order = distinct(for_order, np.arange(pairs))
        first = jnp.take_along_axis(first, order // side, axis=1)
        second = jnp.take_along_axis(second, order % side, axis=1)
        values = distinct(for_values, np.arange(two_thirds, self.vocab_size))
        context = interleave(first, second, values)
        rest = filler(of_filler, self, context)
        return insert_queries(context, rest, for_slots, self.power, 3, (first, second), values)
