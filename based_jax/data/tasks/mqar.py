"""Multi-query associative recall (Zoology, section 4.1 and Algorithm 1).

    k1 v1 k2 v2 ... kD vD  .  .  k2  .  .  .  k1  .  kD  .  .  .  .        inputs
                                 v2           v1     vD                    labels

Keys are drawn from the ids 1 ... V/2 - 1, values from V/2 ... V - 1, both without replacement and anew for
every example. After the context of 2 D tokens each key occurs once more, at position 2 D + 2 g, where the
slots g = 0, 1, ... are drawn without replacement with probability proportional to (g + 1) ** (power - 1).
The value is the label at the key's position. All other tokens are 0, or with `random_fill` uniform over all V
ids: noise that may equal a key of the context, and is not labelled.

The distribution is that of Zoology's generator; its random stream is not reproduced (NumPy's legacy
generator, and torch's global one for the filler, which therefore depends on the model that was built before).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.layout import expect_rows, filler, insert_queries, interleave
from based_jax.data.tasks.sampling import distinct, words
from based_jax.data.tasks.task import Labels, Task, expect_counts
from based_jax.typing import Array, Int


@dataclass(frozen=True)
class MQAR(Task):
    """Multi-query associative recall.

    Attributes:
        length: at least 2 (num_passes + 1) num_pairs.
        power: the papers print 0.1, their code uses 0.01.
        num_passes: how often the context is repeated before the queries.
    """

    vocab_size: int = 8192
    num_examples: int = 1000
    length: int = 64
    num_pairs: int = 8
    power: float = 0.01
    random_fill: bool = True
    num_passes: int = 1

    def __post_init__(self) -> None:
        expect_counts(self, "vocab_size", "num_examples", "length", "num_pairs", "num_passes")
        expect_rows(self, *self.needed)

    @property
    def needed(self) -> tuple[int, str]:
        """Return the number of tokens of the context and the queries, and its formula."""
        factor = 2 * (self.num_passes + 1)
        return factor * self.num_pairs, f"{factor} * num_pairs"

    @property
    def asked(self) -> int:
        """Return the number of pairs that are asked for: the first ones that are drawn."""
        return self.num_pairs

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, and queries for their values; see `Task.draw`."""
        of_samples, of_filler, of_context = jax.random.split(rng, 3)
        n, half = self.num_examples, self.vocab_size // 2
        for_keys, for_values, for_slots = words(of_samples, 3, self.num_pairs, n)
        keys = distinct(for_keys, np.arange(1, half))
        values = distinct(for_values, np.arange(half, self.vocab_size))
        context = self.context(of_context, keys, values)
        rest = filler(of_filler, self, context)
        asked = self.asked
        keys, values = keys[:, :asked], values[:, :asked]
        return insert_queries(context, rest, for_slots[:asked], self.power, 2, (keys,), values)

    def context(self, rng: Array, keys: Int[Array, "n D"], values: Int[Array, "n D"]) -> Int[Array, "n C"]:
        """Return the context: the pairs in all passes."""
        del rng
        return jnp.tile(interleave(keys, values), (1, self.num_passes))
