"""Single-query recall: the earlier synthetic task of H3 and Hyena that MQAR replaced (Zoology, section 3.1).

    k2 v2 k1 v1 k2 v2 k3 v3 k1 v1  COPY k3        inputs
                                        v3        label

Bigrams are drawn with replacement from a dictionary of `num_pairs` keys; the query is one key that occurred,
always at the last position, in a small vocabulary. Gated convolutions solve it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.sampling import distinct, uniform, words
from based_jax.data.tasks.task import IGNORE, Labels, Task, expect_counts, expect_even, interleave
from based_jax.typing import Array, Int
from based_jax.validate import expect


@dataclass(frozen=True)
class SingleQuery(Task):
    """Single-query recall. Keys are ids below h = (vocab_size - 1) // 2, values are h ... 2 h - 1.

    Attributes:
        vocab_size: V; the last id is COPY.
        length: even, at least 4.
        num_pairs: entries of the dictionary, at most h.
        per_sequence_mapping: every row has its own dictionary. False: one for all rows of a segment, as in
            Zoology's code; a model can then memorize it, and another seed has another one.
    """

    vocab_size: int = 40
    num_examples: int = 1000
    length: int = 64
    num_pairs: int = 8
    per_sequence_mapping: bool = True

    def __post_init__(self) -> None:
        expect_counts(self, "vocab_size", "num_examples", "length", "num_pairs")
        expect_even(self.length, 4)
        keys = (self.vocab_size - 1) // 2
        expect(self.num_pairs <= keys, "num_pairs", self.num_pairs, f"at most (vocab_size - 1) // 2 = {keys}")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, COPY, and the key whose value is the only label; see `Task.draw`."""
        of_dictionary, of_bigrams, of_query = jax.random.split(rng, 3)
        n, half = self.num_examples, (self.vocab_size - 1) // 2
        bigrams = (self.length - 2) // 2
        mappings = n if self.per_sequence_mapping else 1
        for_keys, for_values = words(of_dictionary, 2, self.num_pairs, mappings)
        keys = distinct(for_keys, np.arange(half))
        values = distinct(for_values, np.arange(half, 2 * half))
        picks = uniform(of_bigrams, n, bigrams, self.num_pairs)
        keys, values = (
            jnp.take_along_axis(jnp.broadcast_to(tokens, (n, self.num_pairs)), picks, axis=1)
            for tokens in (keys, values)
        )
        asked = uniform(of_query, n, 1, bigrams)
        copy = jnp.full((n, 1), self.vocab_size - 1, jnp.int32)
        query = jnp.take_along_axis(keys, asked, axis=1)
        inputs = jnp.concatenate([interleave(keys, values), copy, query], axis=1)
        labels = jnp.full((n, self.length - 1), IGNORE, jnp.int32)
        return inputs, jnp.concatenate([labels, jnp.take_along_axis(values, asked, axis=1)], axis=1)
