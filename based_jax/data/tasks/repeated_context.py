"""MQAR with a context that is repeated before the queries, as in "Just read twice" prompts (2407.05483).

    k1 v1 k2 v2  k1 v1 k2 v2  .  .  k2  .  k1  .  .  .        two passes
    k1 v1 k2 v2  k2 v2 k1 v1  .  .  k2  .  k1  .  .  .        `shuffled`
    k2 v2 k1 v1  k2 v2 k1 v1  .  .  k1  .  .  .  .  .         `num_queries` 1: one of the pairs is asked for
    k1 0  k2 v2 k1 v1  k2 v2 k1 v1  .  .  k1  .  .  .         `asked_first`: the question, then the context

The prompts of the paper ask first, too ("Information about ..."), and for one of many values. Zoology's
generator intends passes above 1, but fails there.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.layout import interleave
from based_jax.data.tasks.mqar import MQAR
from based_jax.data.tasks.sampling import distinct, words
from based_jax.typing import Array, Int
from based_jax.validate import expect


@dataclass(frozen=True)
class RepeatedContext(MQAR):
    """MQAR with two passes by default; see `MQAR` for the settings.

    Attributes:
        length: at least 2 (num_passes num_pairs + queries), and 2 more for every query with `asked_first`.
        shuffled: each pass has its own order of the pairs.
        num_queries: pairs that are asked for, in an order of the context that does not show which; 0 is all,
            in the order of the context's first pass.
        asked_first: the row begins with the keys that will be asked for, each followed by token 0.
    """

    num_passes: int = 2
    shuffled: bool = False
    num_queries: int = 0
    asked_first: bool = False
    sliced_by = ("num_pairs", "length", "num_passes")

    def __post_init__(self) -> None:
        queries, wanted = self.num_queries, f"an integer from 0 to num_pairs = {self.num_pairs}"
        integer = isinstance(queries, int | np.integer)
        expect(integer and 0 <= queries <= self.num_pairs, "num_queries", queries, wanted)
        super().__post_init__()

    @property
    def needed(self) -> tuple[int, str]:
        """Return the number of tokens of the questions, the context and the queries, and its formula."""
        if not self.num_queries and not self.asked_first:
            return super().needed
        questions = (1 + self.asked_first) * self.asked
        total = 2 * (self.num_passes * self.num_pairs + questions)
        return total, f"2 * ({self.num_passes} * num_pairs + {questions})"

    @property
    def asked(self) -> int:
        """Return the number of pairs that are asked for."""
        return self.num_queries or self.num_pairs

    def context(self, rng: Array, keys: Int[Array, "n D"], values: Int[Array, "n D"]) -> Int[Array, "n C"]:
        """Return the context: the questions with `asked_first`, then the pairs in all passes."""
        asked = keys[:, : self.asked]
        rows, pairs = keys.shape
        context = super().context(rng, keys, values)
        if self.shuffled or self.num_queries:
            orders = self.num_passes if self.shuffled else 1
            order = distinct(words(rng, pairs, rows * orders), np.arange(pairs)).reshape(rows, -1)
            order = jnp.tile(order, (1, self.num_passes // orders))
            context = interleave(*(jnp.take_along_axis(tokens, order, axis=1) for tokens in (keys, values)))
        if self.asked_first:
            context = jnp.concatenate([interleave(asked, jnp.zeros_like(asked)), context], axis=1)
        return context
