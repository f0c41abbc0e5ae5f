"""Lay out the rows of a recall task: a context of tokens, then queries at slots within filler."""

from typing import Any

import jax.numpy as jnp

from based_jax.data.tasks.sampling import power_law, successive, uniform
from based_jax.data.tasks.task import IGNORE
from based_jax.typing import Array, Int
from based_jax.validate import expect


def interleave(*columns: Int[Array, "n D"]) -> Int[Array, "n C"]:
    """Interleave columns a and b as a1 b1 a2 b2 ..."""
    return jnp.stack(columns, axis=-1).reshape(columns[0].shape[0], -1)


def filler(rng: Array, task: Any, context: Int[Array, "n C"]) -> Int[Array, "n M"]:
    """Draw the tokens between queries: 0, or with `random_fill` uniform over all ids, keys and values too."""
    shape = len(context), task.length - context.shape[1]
    return uniform(rng, *shape, task.vocab_size) if task.random_fill else jnp.zeros(shape, jnp.int32)


def insert_queries(
    context: Int[Array, "n C"],
    rest: Int[Array, "n M"],
    for_slots: Array,
    power: float,
    width: int,
    queries: tuple[Int[Array, "n D"], ...],
    answers: Int[Array, "n D"],
) -> tuple[Int[Array, "n N"], Int[Array, "n N"]]:
    """Return inputs and labels of rows whose queries begin at positions C + width * slot.

    Args:
        context: the beginning of each row.
        rest: the filler after it, partly replaced by queries. N = C + M.
        for_slots: random words (D, 2, n) from which the queries' slots, all different in a row, are drawn.
        power: slot g = 0, 1, ... has probability proportional to (g + 1) ** (power - 1).
        width: positions per slot.
        queries: tokens of each query, up to `width`; a query's label is at its last token.
        answers: the labels.
    """
    slots = successive(for_slots, power_law(rest.shape[1] // width, power))
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
    expect(0 < power < float("inf"), "power", power, "a finite number above 0")


def expect_even(length: int, least: int = 0) -> None:
    """Check that a length is even, and at least `least`."""
    expected = f"an even number, at least {least}" if least else "an even number"
    expect(length % 2 == 0 and length >= least, "length", length, expected)
