"""Probe the recall of pretrained language models (Zoology, appendix G): MQAR over the whole vocabulary.

    k1 v1 k2 v2 ... kD vD  f  f  k2  f  f  f  k1  f  kD  f        inputs
                                 v2           v1     vD           labels

The filler f is one fixed token, which is neither a key nor a value. Keys come from the lower half of the ids,
values from the upper one. The papers measure the perplexity at the labels for 16 to 256 pairs.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.layout import expect_rows, insert_queries, interleave
from based_jax.data.tasks.sampling import distinct, words
from based_jax.data.tasks.task import Labels, Task, expect_counts
from based_jax.typing import Array, Int
from based_jax.validate import expect


@dataclass(frozen=True)
class RecallProbe(Task):
    """MQAR over a pretrained model's vocabulary.

    Attributes:
        vocab_size: V, the model's, without padding.
        length: at least 4 num_pairs.
        filler: token id between the queries, for instance that of a newline.
    """

    vocab_size: int = 32_000
    num_examples: int = 1000
    length: int = 1024
    num_pairs: int = 16
    filler: int = 0
    power: float = 0.01

    def __post_init__(self) -> None:
        expect_counts(self, "vocab_size", "num_examples", "length", "num_pairs")
        expect_rows(self, 4 * self.num_pairs, "4 * num_pairs")
        inside = isinstance(self.filler, int | np.integer) and 0 <= self.filler < self.vocab_size
        expect(inside, "filler", self.filler, f"an id below vocab_size = {self.vocab_size}")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, and queries for their values between filler tokens; see `Task.draw`."""
        n, pairs = self.num_examples, self.num_pairs
        for_keys, for_values, for_slots = words(rng, 3, pairs, n)
        ids = np.arange(self.vocab_size)
        lower, upper = (half[half != self.filler] for half in np.split(ids, [self.vocab_size // 2]))
        keys = distinct(for_keys, lower)
        values = distinct(for_values, upper)
        context = interleave(keys, values)
        rest = jnp.full((n, self.length - context.shape[1]), self.filler, jnp.int32)
        return insert_queries(context, rest, for_slots, self.power, 2, (keys,), values)
