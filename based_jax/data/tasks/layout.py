"""Rows of a recall task: a context of tokens, then queries at slots among filler."""

import jax.numpy as jnp

from based_jax.data.tasks.sampling import uniform
from based_jax.data.tasks.task import IGNORE
from based_jax.typing import Array, Int
from based_jax.validate import expect


def interleave(*columns: Int[Array, "n D"]) -> Int[Array, "n C"]:
    """a1 b1 a2 b2 ... from columns a and b."""
    return jnp.stack(columns, axis=-1).reshape(columns[0].shape[0], -1)


def filler(rng: Array, rows: int, length: int, vocab_size: int, random: bool) -> Int[Array, "rows length"]:
    """Tokens between the queries: 0, or `random`, uniform over all ids, keys and values among them."""
    return uniform(rng, rows, length, vocab_size) if random else jnp.zeros((rows, length), jnp.int32)


def place(
    context: Int[Array, "n C"],
    rest: Int[Array, "n M"],
    slots: Int[Array, "n D"],
    width: int,
    queries: tuple[Int[Array, "n D"], ...],
    answers: Int[Array, "n D"],
) -> tuple[Int[Array, "n N"], Int[Array, "n N"]]:
    """Inputs and labels of rows whose queries begin at position C + width * slot.

    Args:
        context: the beginning of each row.
        rest: the filler behind it; queries replace some of it. N = C + M.
        slots: different ones in each row.
        width: positions per slot.
        queries: tokens of each query, up to `width`; a query's label is at its last token.
        answers: the labels.
    """
    inputs = jnp.concatenate([context, rest], axis=1)
    row = jnp.arange(inputs.shape[0], dtype=jnp.int32)[:, None]
    position = context.shape[1] + width * slots
    for offset, tokens in enumerate(queries):
        inputs = inputs.at[row, position + offset].set(tokens, unique_indices=True)
    last = position + len(queries) - 1
    labels = jnp.full_like(inputs, IGNORE).at[row, last].set(answers, unique_indices=True)
    return inputs, labels


def expect_room(length: int, needed: int, formula: str) -> None:
    """Check that rows are long enough, and even, as slots of two tokens ask for."""
    expect(length >= needed, "length", length, f"at least {formula} = {needed}")
    expect(length % 2 == 0, "length", length, "an even number")


def expect_vocabulary(vocab_size: int, length: int) -> None:
    """Check the authors' condition, which also leaves enough keys and values to draw from."""
    expect(vocab_size > length, "vocab_size", vocab_size, f"more than length = {length}")


def expect_power(power: float) -> None:
    """Check the exponent of the slots' power law."""
    expect(0 < power < float("inf"), "power", power, "a finite number above 0")
