"""Recall with other keys than MQAR's: of two tokens, in contexts, and on embeddings.

Compositional MQAR (Zoology's code), where two tokens together determine the value:

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

from based_jax.data.tasks.sampling import distinct, uniform, words
from based_jax.data.tasks.task import (
    IGNORE,
    Labels,
    Task,
    expect_rows,
    filler,
    insert_queries,
    interleave,
)
from based_jax.typing import Array, Float, Int
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
        super().__post_init__()
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
        return insert_queries(self, context, rest, for_slots, (first, second), values)


@dataclass(frozen=True)
class JointRecall(Task):
    """Joint recall (Zhan et al. 2025, 2507.00449, and its code): a key's value depends on its context.

        BOS C2 k1 v3 k2 v1 C1 k2 v2 k1 v3  SEP C1 k1 v3 k2 v2 C2 k2 v1 k1 v3        inputs
                                                  v3    v2       v1    v3           labels

    All contexts have the same keys, and a value, drawn with replacement, for each. The second half asks for
    all values, contexts and their keys in a new order. The ids are BOS, SEP, values, keys, contexts. (Their
    data mix tables of 5 to 16 contexts and keys; here a segment has one size.)
    """

    num_examples: int = 1000
    num_contexts: int = 5
    num_keys: int = 5
    num_values: int = 16
    sliced_by = ("num_contexts", "num_keys", "length")

    @property
    def length(self) -> int:
        """Return the tokens per row, N."""
        return 2 * (1 + self.num_contexts * (1 + 2 * self.num_keys))

    @property
    def vocab_size(self) -> int:
        """Return the number of ids."""
        return 2 + self.num_values + self.num_keys + self.num_contexts

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw a table, and list it twice; see `Task.draw`."""
        of_table, of_first, of_second = jax.random.split(rng, 3)
        table = 2 + uniform(of_table, self.num_examples, self.num_contexts * self.num_keys, self.num_values)
        inputs = jnp.concatenate(
            [self._listed(of_first, table, 0), self._listed(of_second, table, 1)], axis=1
        )
        first = 2 + self.num_values
        is_asked = (inputs >= first) & (inputs < first + self.num_keys)
        is_asked &= jnp.arange(self.length) >= self.length // 2
        return inputs, jnp.where(is_asked, jnp.roll(inputs, -1, axis=1), IGNORE)

    def _listed(self, rng: Array, table: Int[Array, "n cells"], mark: int) -> Int[Array, "n half"]:
        """Return `mark`, and the table in a random order."""
        of_contexts, of_keys = jax.random.split(rng)
        n, contexts, keys, first = self.num_examples, self.num_contexts, self.num_keys, 2 + self.num_values
        context = distinct(words(of_contexts, contexts, n), np.arange(contexts))[..., None]
        key = distinct(words(of_keys, keys, n * contexts), np.arange(keys)).reshape(n, contexts, keys)
        value = jnp.take_along_axis(table, (context * keys + key).reshape(n, -1), axis=1).reshape(key.shape)
        pairs = jnp.stack([first + key, value], axis=-1).reshape(n, contexts, -1)
        rows = jnp.concatenate([first + keys + context, pairs], axis=2).reshape(n, -1)
        return jnp.pad(rows, ((0, 0), (1, 0)), constant_values=mark)


@dataclass(frozen=True)
class StackedMQAR(Task):
    """Stacked MQAR on embeddings (Zoology's code): key and value side by side in one vector, no shift needed.

        [k2|v2] [k1|v1] [k3|v3]  [k1| 0] [k3| 0] [k2| 0]        inputs
                                    v1      v3      v2          labels

    Inputs are float32 (n, (num_passes + 1) D, 2 embedding_dim). A frozen table has V unit vectors, the lower
    half for keys, the upper half for values. Each pass has the D pairs in a new order, followed by D queries
    in a new order. A label is the value's row in the upper half, 0 ... V/2 - 1. One layer of attention solves
    it.

    Attributes:
        vocab_size: V, rows of the table, even.
        num_pairs: D, at most V / 2; also queries.
        num_passes: how often the pairs are repeated before the queries.
        embedding_dim: width of a vector of the table.
    """

    vocab_size: int = 8192
    num_examples: int = 1000
    num_pairs: int = 8
    num_passes: int = 1
    embedding_dim: int = 64
    sliced_by = ("num_pairs", "num_passes", "length")

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.vocab_size % 2 == 0, "vocab_size", self.vocab_size, "an even number")
        half = self.vocab_size // 2
        expect(self.num_pairs <= half, "num_pairs", self.num_pairs, f"at most vocab_size / 2 = {half}")

    @property
    def length(self) -> int:
        """Return the vectors per row, N."""
        return (self.num_passes + 1) * self.num_pairs

    @property
    def input_dim(self) -> int:
        """Return the width of an input vector, key and value."""
        return 2 * self.embedding_dim

    def embeddings(self) -> Float[Array, "V D"]:
        """Return the table, float32 (vocab_size, embedding_dim), with rows of norm 1.

        Unlike tokens, these floats may differ in their last bit between backends.
        """
        of_table, _ = jax.random.split(jax.random.key(0, impl="threefry2x32"))
        table = jax.random.normal(of_table, (self.vocab_size, self.embedding_dim), jnp.float32)
        return table / jnp.linalg.norm(table, axis=1, keepdims=True)

    def label_vectors(self) -> Float[Array, "labels E"]:
        """Return the values' vectors, the upper half of the table; see `Task.label_vectors`."""
        return self.embeddings()[self.vocab_size // 2 :]

    def draw(self, rng: Array) -> tuple[Float[Array, "n N D"], Labels]:
        """Draw the vectors of pairs, and of queries for their values; see `Task.draw`."""
        of_pairs, of_order = jax.random.split(rng)
        n, pairs, half = self.num_examples, self.num_pairs, self.vocab_size // 2
        for_keys, for_values = words(of_pairs, 2, pairs, n)
        keys = distinct(for_keys, np.arange(half))
        values = distinct(for_values, np.arange(half))
        order = distinct(words(of_order, pairs, n * (self.num_passes + 1)), np.arange(pairs)).reshape(n, -1)
        keys, values = (jnp.take_along_axis(ids, order, axis=1) for ids in (keys, values))
        is_query = jnp.arange(self.length) >= self.num_passes * pairs
        table = self.embeddings()
        shown = jnp.where(is_query[:, None], 0, table[half + values])
        return jnp.concatenate([table[keys], shown], axis=-1), jnp.where(is_query, values, IGNORE)
