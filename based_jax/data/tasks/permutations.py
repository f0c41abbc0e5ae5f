"""State tracking: word problems of permutations of k items (Merrill et al. 2024, 2404.08819, section 5).

    1 2 0 1 5        tokens are permutations, the k! ids in lexicographic order
    1 4 4 2 ...      a label is the product so far, the last token applied last

Degree 2 is parity after every bit, 3 is S3, solvable, and 5 is S5, whose word problem is NC1-complete. Grazzi
et al. 2024 (2411.12537) show what negative eigenvalues add to linear recurrences here.
"""

import itertools
import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.data.tasks.sampling import uniform
from based_jax.data.tasks.task import Labels, Task, expect_counts
from based_jax.typing import Array, Int
from based_jax.validate import expect


@dataclass(frozen=True)
class Permutations(Task):
    """Products of permutations, drawn uniformly, at every position.

    Attributes:
        degree: items that are permuted, 2 to 6.
    """

    num_examples: int = 1000
    length: int = 16
    degree: int = 5
    sliced_by = ("length", "degree")

    def __post_init__(self) -> None:
        expect_counts(self, "num_examples", "length", "degree")
        expect(2 <= self.degree <= 6, "degree", self.degree, "from 2 to 6")

    @property
    def vocab_size(self) -> int:
        """Return the number of permutations."""
        return math.factorial(self.degree)

    def products(self) -> np.ndarray:
        """Return the id of "a, then b", int32 (k!, k!)."""
        elements = np.array([*itertools.permutations(range(self.degree))])
        weights = self.degree ** np.arange(self.degree)[::-1]
        codes = elements[:, elements].swapaxes(0, 1) @ weights
        return np.searchsorted(elements @ weights, codes).astype(np.int32)

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw permutations, with the products so far as labels; see `Task.draw`."""
        tokens, table = uniform(rng, self.num_examples, self.length, self.vocab_size), self.products()
        return tokens, lax.associative_scan(lambda a, b: jnp.asarray(table)[a, b], tokens, axis=1)
