"""MQAR with a context that is repeated before the queries, as in "Just read twice" prompts.

    k1 v1 k2 v2  k1 v1 k2 v2  .  .  k2  .  k1  .  .  .        two passes
    k1 v1 k2 v2  k2 v2 k1 v1  .  .  k2  .  k1  .  .  .        `shuffled`

Zoology's generator intends this for `num_passes` above 1, but fails there.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.layout import interleave
from based_jax.data.tasks.mqar import MQAR
from based_jax.data.tasks.sampling import distinct, words
from based_jax.typing import Array, Int


@dataclass(frozen=True)
class RepeatedContext(MQAR):
    """MQAR with two passes by default; see `MQAR` for the settings.

    Attributes:
        shuffled: each pass has its own order of the pairs.
    """

    num_passes: int = 2
    shuffled: bool = False
    sliced_by = ("num_pairs", "length", "num_passes")

    def context(self, rng: Array, keys: Int[Array, "n D"], values: Int[Array, "n D"]) -> Int[Array, "n C"]:
        """Return the context: the pairs in all passes, each in its own order if `shuffled`."""
        if not self.shuffled:
            return super().context(rng, keys, values)
        rows, pairs = keys.shape
        order = distinct(words(rng, pairs, rows * self.num_passes), np.arange(pairs)).reshape(rows, -1)
        return interleave(*(jnp.take_along_axis(tokens, order, axis=1) for tokens in (keys, values)))
