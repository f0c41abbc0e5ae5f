"""Stacked MQAR on embeddings (Zoology's code): key and value side by side in one vector, no shift needed.

    [k2|v2] [k1|v1] [k3|v3]  [k1| 0] [k3| 0] [k2| 0]        inputs
                                v1      v3      v2          labels

A frozen table has V unit vectors, the lower half for keys, the upper half for values. Each pass has the D
pairs in a new order, followed by D queries in a new order. A label is the value's row in the upper half,
0 ... V/2 - 1. One layer of attention solves it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.sampling import distinct, words
from based_jax.data.tasks.task import IGNORE, Labels, Task
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect


@dataclass(frozen=True)
class StackedMQAR(Task):
    """Recall on embeddings. Inputs are float32 (n, (num_passes + 1) D, 2 embedding_dim).

    Attributes:
        vocab_size: V, rows of the table, even.
        num_pairs: D, at most V / 2; also queries.
        num_passes: how often the pairs are repeated before the queries.
        embedding_dim: width of a vector of the table.
        per_sequence_mapping: every row has its own map of keys to values. False: one map of all keys to
            values for every row and seed, part of the table, which a model can memorize. (Zoology's code
            intends this too, but draws new values.)
        table_seed: seed of the table; use the same for training and test segments.
    """

    vocab_size: int = 8192
    num_examples: int = 1000
    num_pairs: int = 8
    num_passes: int = 1
    embedding_dim: int = 64
    per_sequence_mapping: bool = True
    table_seed: int = 0
    sliced_by = ("num_pairs", "num_passes", "length")

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.vocab_size % 2 == 0, "vocab_size", self.vocab_size, "an even number")
        half = self.vocab_size // 2
        expect(self.num_pairs <= half, "num_pairs", self.num_pairs, f"at most vocab_size / 2 = {half}")
        expect(0 <= self.table_seed < 1 << 32, "table_seed", self.table_seed, "from 0 to 2**32 - 1")

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
        of_table, _ = jax.random.split(self._table_rng())
        table = jax.random.normal(of_table, (self.vocab_size, self.embedding_dim), jnp.float32)
        return table / jnp.linalg.norm(table, axis=1, keepdims=True)

    def label_vectors(self) -> Float[Array, "labels E"]:
        """Return the values' vectors, the upper half of the table; see `Task.label_vectors`."""
        return self.embeddings()[self.vocab_size // 2 :]

    def mapping(self) -> Int[Array, " keys"]:
        """Return the value row (in the upper half) of each key if all rows share them, int32 (V / 2,)."""
        _, of_mapping = jax.random.split(self._table_rng())
        return jax.random.permutation(of_mapping, jnp.arange(self.vocab_size // 2, dtype=jnp.int32))

    def _table_rng(self) -> Array:
        return jax.random.key(np.uint32(self.table_seed), impl="threefry2x32")

    def draw(self, rng: Array) -> tuple[Float[Array, "n N D"], Labels]:
        """Draw the vectors of pairs, and of queries for their values; see `Task.draw`."""
        of_pairs, of_order = jax.random.split(rng)
        n, pairs, half = self.num_examples, self.num_pairs, self.vocab_size // 2
        for_keys, for_values = words(of_pairs, 2, pairs, n)
        keys = distinct(for_keys, np.arange(half))
        own = self.per_sequence_mapping
        values = distinct(for_values, np.arange(half)) if own else self.mapping()[keys]
        order = distinct(words(of_order, pairs, n * (self.num_passes + 1)), np.arange(pairs)).reshape(n, -1)
        keys, values = (jnp.take_along_axis(ids, order, axis=1) for ids in (keys, values))
        is_query = jnp.arange(self.length) >= self.num_passes * pairs
        table = self.embeddings()
        shown = jnp.where(is_query[:, None], 0, table[half + values])
        return jnp.concatenate([table[keys], shown], axis=-1), jnp.where(is_query, values, IGNORE)
