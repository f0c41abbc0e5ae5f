"""Forgetting MQAR (Zoology's code): some keys get a new value, and queries ask for the last one.

    k1 v1 k2 v2 k3 v3  k3 w3 k1 w1  .  .  k1  .  k2  .  .  .  k3  .  ...        inputs
                                          w1     v2           w3                labels

All D + U values of a row are different, so a new value never equals an old one. (Zoology's code intends to
exclude the old value, but excludes that of another key.) Vocabulary, slots and filler are as in MQAR.
"""

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
class Forgetting(Task):
    """Recall with updates.

    Attributes:
        length: at least 2 (num_pairs + num_updates) + 2 num_pairs.
        num_updates: U, number of keys that get a second value, at most D; chosen at random, in random order.
    """

    vocab_size: int = 8192
    num_examples: int = 1000
    length: int = 64
    num_pairs: int = 8
    num_updates: int = 4
    power: float = 0.01
    random_fill: bool = True
    sliced_by = ("num_pairs", "num_updates", "length")

    def __post_init__(self) -> None:
        expect_counts(self, "vocab_size", "num_examples", "length", "num_pairs", "num_updates")
        fits = self.num_updates <= self.num_pairs
        expect(fits, "num_updates", self.num_updates, f"at most num_pairs = {self.num_pairs}")
        needed = 4 * self.num_pairs + 2 * self.num_updates
        expect_rows(self, needed, "4 * num_pairs + 2 * num_updates")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, updates of some of them, and queries for the last values; see `Task.draw`."""
        of_samples, of_updates, of_filler = jax.random.split(rng, 3)
        n, pairs, half = self.num_examples, self.num_pairs, self.vocab_size // 2
        for_keys, for_old, for_slots = words(of_samples, 3, pairs, n)
        for_new, for_choice = words(of_updates, 2, self.num_updates, n)
        keys = distinct(for_keys, np.arange(1, half))
        values = distinct(jnp.concatenate([for_old, for_new]), np.arange(half, self.vocab_size))
        old, new = values[:, :pairs], values[:, pairs:]
        updated = distinct(for_choice, np.arange(pairs))
        again = jnp.take_along_axis(keys, updated, axis=1)
        row = jnp.arange(n, dtype=jnp.int32)[:, None]
        last = old.at[row, updated].set(new, unique_indices=True)
        context = jnp.concatenate([interleave(keys, old), interleave(again, new)], axis=1)
        rest = filler(of_filler, self, context)
        return insert_queries(context, rest, for_slots, self.power, 2, (keys,), last)
