"""Joint recall: the value of a key depends on the context (Zhan et al. 2025, 2507.00449, and its code).

    BOS  C2 k1 v3 k2 v1  C1 k2 v2 k1 v3   SEP  C1 k1 v3 k2 v2  C2 k2 v1 k1 v3        inputs
                                                  v3    v2        v1    v3           labels

Every context has the same keys, and a value, drawn with replacement, for each of them. The second half asks
for all values, in a new order of the contexts and of each one's keys. The ids are BOS = 0, SEP = 1, values,
keys, contexts. (Their data mix tables of 5 to 16 contexts and keys; here a segment has one size.)
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.sampling import distinct, uniform, words
from based_jax.data.tasks.task import IGNORE, Labels, Task, expect_counts
from based_jax.typing import Array, Int


@dataclass(frozen=True)
class JointRecall(Task):
    """Joint recall of all values of a table of contexts and keys."""

    num_examples: int = 1000
    num_contexts: int = 5
    num_keys: int = 5
    num_values: int = 16
    sliced_by = ("num_contexts", "num_keys", "length")

    def __post_init__(self) -> None:
        expect_counts(self, "num_examples", "num_contexts", "num_keys", "num_values")

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
