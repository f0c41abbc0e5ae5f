"""Draw all layers by one loop: for one CPU, where every fused program takes 15 ms to compile.

A layer's draws are a stream: rows of N(0, 1), then rows of U(-1, 1), of which each array takes a slice. The
loop that fills the rows is the same for all layers, so its generator is compiled once. Loops of one iteration
around copies keep XLA from fusing these with what they copy; a copy by itself needs no compiled program.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.models.threefry import normal_values, uniform_values
from based_jax.models.traced_init import ROW, Program
from based_jax.typing import Array, Bool, Float, Int


def draw_by_stream(
    programs: Sequence[Program], kinds: Sequence[Sequence[int]], key: Array, words: Int[Array, "2"]
) -> list[list[list[Array]]]:
    """Return the random leaves of every layer of every kind; see `draw_layers`."""
    counts = [len(layers) for layers in kinds]
    order = [layer for layers in kinds for layer in layers]
    kind_of = np.repeat(np.arange(len(kinds)), counts)
    rows = np.array([program.rows for program in programs])

    def draw_next(number: Array, carry: Any) -> Any:
        is_next, stream, drawn = carry
        layer, kind = jnp.array(order, jnp.uint32)[number], jnp.array(kind_of)[number]
        stream = fill(stream, words, layer, *jnp.array(rows)[kind])
        flags, results = iter(is_next), list(drawn)
        for index, program in enumerate(programs):
            own: list[Any] = list(itertools.islice(flags, counts[index]))
            store = functools.partial(_store, program, jax.random.fold_in(key, layer), stream, own)
            results[index] = _once(kind == index, store, drawn[index])
        return (is_next[-1], *is_next[:-1]), stream, results

    # Flags that rotate instead of comparisons with the number, which would be a program each.
    is_next = tuple(jnp.array(number == 0) for number in range(len(order)))
    stream = jnp.zeros((max(*rows.max(axis=0), 1), ROW), jnp.float32)
    empty = [[program.empty() for _ in range(count)] for program, count in zip(programs, counts, strict=True)]
    return cast(Any, lax.fori_loop)(0, len(order), draw_next, (is_next, stream, empty))[-1]


def fill(
    stream: Float[Array, "rows R"], words: Int[Array, "2"], layer: Array, normal_rows: Array, rows: Array
) -> Float[Array, "rows R"]:
    """Write a layer's draws into the first `rows` rows, of which `normal_rows` are from N(0, 1)."""

    def fill_row(row: Array, stream: Array) -> Array:
        index = (row * ROW).astype(jnp.uint32) + jnp.arange(ROW, dtype=jnp.uint32)
        # The branches also keep the draws out of the update's program, which uses one core.
        drawn = cast(Any, lax.cond)(row < normal_rows, normal_values, uniform_values, words, layer, index)
        return lax.dynamic_update_slice(stream, drawn[None], (row, 0))

    return cast(Any, lax.fori_loop)(0, rows, fill_row, stream)


def _store(
    program: Program, key: Array, stream: Array, flags: list[Array], old: list[list[Array]]
) -> list[list[Array]]:
    """Replace the arrays of the layer whose flag is set."""
    flat = stream.reshape(-1)

    def supply(which: int, start: int, shape: tuple[int, ...]) -> Array:
        return flat[start : start + math.prod(shape)].reshape(shape)

    new = program.random(key, supply)
    if len(flags) == 1:
        return [new]
    return [_once(flag, lambda _: new, each) for flag, each in zip(flags, old, strict=True)]


def _once(flag: Bool[Array, ""], function: Callable[[Any], Any], value: Any) -> Any:
    """Return function(value) if the flag is set, else value; a `lax.cond` would copy the value."""
    return lax.while_loop(
        lambda carry: carry[0], lambda carry: (jnp.array(False), function(carry[1])), (flag, value)
    )[1]
