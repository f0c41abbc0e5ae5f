"""Base class of the tasks: frozen settings whose `build(seed)` draws a segment of examples.

The rows of a recall task are a context of tokens, then queries at slots within filler; see `insert_queries`.
"""

import abc
import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.sampling import power_law, successive, uniform
from based_jax.typing import Array, Float, Int
from based_jax.validate import UINT32_MAX, expect, expect_integer

IGNORE = -100
"""Label of a token that counts neither in the loss nor in the accuracy."""

Inputs = Int[Array, "n N"] | Float[Array, "n N D"]
Labels = Int[Array, "n N"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Examples of one task with one setting."""

    inputs: Inputs
    """int32 (n, N) token ids; float32 (n, N, D) for a task on embeddings"""
    labels: Labels
    """int32 (n, N), the answer at the position whose output must be it, else `IGNORE`"""
    slices: dict[str, int | float]
    """properties to group results by, the same for every example"""


class Task(abc.ABC):
    """Settings of a task, one frozen dataclass per task; invalid settings raise an error at construction.

    Numbers whose default is at least 1 must be. Settings that several tasks share:

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

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            if type(setting.default) is int and setting.default > 0:
                expect_integer(setting.name, getattr(self, setting.name), 1)

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
        expect_integer("seed", seed, 0, UINT32_MAX)
        inputs, labels = _draw(self, jax.random.key(np.uint32(seed), impl="threefry2x32"))
        return Segment(inputs, labels, self.slices)


@partial(jax.jit, static_argnums=0)
def _draw(task: Task, rng: Array) -> tuple[Inputs, Labels]:
    return task.draw(rng)


def interleave(*columns: Int[Array, "n D"]) -> Int[Array, "n C"]:
    """Interleave columns a and b as a1 b1 a2 b2 ..."""
    return jnp.stack(columns, axis=-1).reshape(columns[0].shape[0], -1)


def filler(rng: Array, task: Any, context: Int[Array, "n C"]) -> Int[Array, "n M"]:
    """Draw the tokens between queries: 0, or with `random_fill` uniform over all ids, keys and values too."""
    shape = len(context), task.length - context.shape[1]
    return uniform(rng, *shape, task.vocab_size) if task.random_fill else jnp.zeros(shape, jnp.int32)


def insert_queries(
    task: Any,
    context: Int[Array, "n C"],
    rest: Int[Array, "n M"],
    for_slots: Array,
    queries: tuple[Int[Array, "n D"], ...],
    answers: Int[Array, "n D"],
) -> tuple[Int[Array, "n N"], Int[Array, "n N"]]:
    """Return inputs and labels of rows whose queries of Q tokens begin at positions C + (Q + 1) * slot.

    Args:
        context: the beginning of each row.
        rest: the filler after it, partly replaced by queries. N = C + M.
        for_slots: random words (D, 2, n) from which the queries' slots, all different in a row, are drawn:
            slot g = 0, 1, ... has probability proportional to (g + 1) ** (task.power - 1).
        queries: the Q tokens of each query, whose label is at the last of them.
        answers: the labels.
    """
    width = len(queries) + 1
    slots = successive(for_slots, power_law(rest.shape[1] // width, task.power))
    inputs = jnp.concatenate([context, rest], axis=1)
    row = jnp.arange(inputs.shape[0], dtype=jnp.int32)[:, None]
    position = context.shape[1] + width * slots
    for offset, tokens in enumerate(queries):
        inputs = inputs.at[row, position + offset].set(tokens, unique_indices=True)
    last = position + len(queries) - 1
    labels = jnp.full_like(inputs, IGNORE).at[row, last].set(answers, unique_indices=True)
    return inputs, labels


def expect_rows(task: Any, needed: int, formula: str) -> None:
    """Check the settings that tasks with queries at slots share.

    Rows must hold `needed` tokens, and an even number of them, as slots have two. The vocabulary must be
    larger than the length, as in Zoology's code, which leaves enough keys and values to draw from.
    """
    length, vocab_size, power = task.length, task.vocab_size, task.power
    expect(length >= needed, "length", length, f"at least {formula} = {needed}")
    expect_even(length)
    expect(vocab_size > length, "vocab_size", vocab_size, f"more than length = {length}")
    is_real = isinstance(power, int | float | np.floating)
    expect(is_real and 0 < float(power) < float("inf"), "power", power, "a finite number above 0")


def expect_even(length: int, least: int = 0) -> None:
    """Check that a length is even, and at least `least`."""
    expected = f"an even number, at least {least}" if least else "an even number"
    expect(length % 2 == 0 and length >= least, "length", length, expected)
