"""Base class of the tasks: frozen settings whose `build(seed)` draws a segment of examples."""

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np

from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_integer

IGNORE = -100
"""Label of a token that counts neither in the loss nor in the accuracy."""

Inputs = Int[Array, "n N"] | Float[Array, "n N D"]
Labels = Int[Array, "n N"]


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class Segment:
    """Examples of one task with one setting; a pytree of the two arrays."""

    inputs: Inputs
    """int32 (n, N) token ids; float32 (n, N, D) for a task on embeddings"""
    labels: Labels
    """int32 (n, N), the answer at the position whose output must be it, else `IGNORE`"""
    slices: dict[str, int | float]
    """properties to group results by, the same for every example"""

    def tree_flatten_with_keys(self) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        """Return the arrays, and the slices in hashable form: a segment can then be an argument of `jit`."""
        name = jax.tree_util.GetAttrKey
        return tuple((name(x), getattr(self, x)) for x in ("inputs", "labels")), tuple(self.slices.items())

    @classmethod
    def tree_unflatten(cls, slices: tuple[Any, ...], arrays: tuple[Any, Any]) -> "Segment":
        """Invert `tree_flatten_with_keys`."""
        return cls(*arrays, dict(slices))


class Task(abc.ABC):
    """Settings of a task, one frozen dataclass per task; invalid settings raise an error at construction.

    Settings that several tasks share:

        vocab_size      V, token ids
        num_examples    rows, n
        length          tokens per row, N; in tasks with queries at slots even, and less than V
        num_pairs       D, number of keys with values; also of queries
        power           of the distribution of the queries' slots, above 0; 1 is uniform
        random_fill     random tokens between the queries instead of 0

    Raises:
        ValueError: a setting out of range.
    """

    sliced_by: ClassVar[tuple[str, ...]] = ("num_pairs", "length")
    """settings to group results by"""
    decodes_last: ClassVar[bool] = False
    """whether models decode all labels from the last output, as `AutoEncoder`"""

    @property
    def slices(self) -> dict[str, int | float]:
        """Return the properties to group results by."""
        return {name: getattr(self, name) for name in self.sliced_by}

    def label_vectors(self) -> Float[Array, "labels E"] | None:
        """Return the fixed vector of each label if the task is on embeddings; None for a task on tokens.

        A model of such a task outputs a vector, which is scored by its products with these.
        """
        return None

    @abc.abstractmethod
    def draw(self, rng: Array) -> tuple[Inputs, Labels]:
        """Draw inputs and labels from a random key; traceable, `build` compiles it."""

    def build(self, seed: int) -> Segment:
        """Draw the examples on the default device.

        The same seed gives the same tokens on every backend and with 64-bit types on or off: keys are always
        threefry, whatever the configured default, and tokens are computed in integer arithmetic.

        Raises:
            ValueError: a seed that is not an integer of 32 bits.
        """
        integer = isinstance(seed, int | np.integer)
        expect(integer and 0 <= seed < 1 << 32, "seed", seed, "an integer from 0 to 2**32 - 1")
        inputs, labels = _draw(self, jax.random.key(np.uint32(seed), impl="threefry2x32"))
        return Segment(inputs, labels, self.slices)


@partial(jax.jit, static_argnums=0)
def _draw(task: Task, rng: Array) -> tuple[Inputs, Labels]:
    return task.draw(rng)


def expect_counts(task: Task, *names: str) -> None:
    """Check that these settings are integers, at least 1."""
    for name in names:
        expect_integer(name, getattr(task, name), 1)
