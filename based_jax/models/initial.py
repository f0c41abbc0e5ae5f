"""Draw the initial parameters of a model: each element by its counter, whatever the program that draws it."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.models.stream import draw_by_stream
from based_jax.models.threefry import normal_values, uniform_values
from based_jax.models.traced_init import Program, Supply, trace
from based_jax.typing import Array, Int


def draw_tables(draw: Callable[[Array], Any], number: int, key: Array) -> Any:
    """Return the variables outside of the layers, each drawn by a program of its own."""
    program = trace(draw, key)
    leaves = program.random(jax.random.fold_in(key, number), by_counter(_words(key), number))
    return program.variables(leaves)


def draw_layers(
    draws: Sequence[Callable[[Array], Any]], kinds: Sequence[Sequence[int]], key: Array
) -> dict[int, Any]:
    """Return the variables of every layer, drawn independently.

    A layer's draws depend on `key` and its index alone: those of `based_jax.mixers.draws` on their counters,
    all others on the layer's own key.

    Args:
        draws: for each kind of layer the function from a key to its variables.
        kinds: for each kind the indices of its layers.
        key: for all layers.
    """
    programs = [trace(draw, key) for draw in draws]
    # Every device would draw the whole stream.
    is_alone = jax.default_backend() == "cpu" and jax.device_count() == 1
    drawn = (draw_by_stream if is_alone else draw_by_kind)(programs, kinds, key, _words(key))
    return {
        layer: program.variables(leaves)
        for program, layers, own in zip(programs, kinds, drawn, strict=True)
        for layer, leaves in zip(layers, own, strict=True)
    }


def draw_by_kind(
    programs: Sequence[Program], kinds: Sequence[Sequence[int]], key: Array, words: Int[Array, "2"]
) -> list[list[list[Array]]]:
    """Return the random leaves of every layer of every kind, by a loop per kind; see `draw_layers`.

    Each device draws its own shards. The loop is compiled once for all layers, and separates drawing from the
    copies of its results, which XLA would fuse into a program per array.
    """

    def draw(program: Program, layer: Any) -> list[Array]:
        return program.random(jax.random.fold_in(key, layer), by_counter(words, layer))

    drawn: list[list[list[Array]]] = []
    for program, layers in zip(programs, kinds, strict=True):
        if len(layers) == 1:
            drawn.append([draw(program, layers[0])])
            continue
        every = jnp.array(layers, jnp.uint32)
        stacks = cast(list[Array], lax.map(functools.partial(draw, program), every))
        drawn.append([[stack[index] for stack in stacks] for index in range(len(layers))])
    return drawn


def by_counter(words: Int[Array, "2"], number: Any) -> Supply:
    """Return the function that draws layer `number`'s values, each from its index alone."""

    def supply(which: int, start: int, shape: tuple[int, ...]) -> Array:
        index = np.uint32(start)
        for axis in range(len(shape)):
            index += lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(math.prod(shape[axis + 1 :]))
        return (normal_values, uniform_values)[which](words, number, index)

    return supply


def _words(key: Array) -> Int[Array, "2"]:
    """Return the generator's key: all words, or two of the four of jax's other generators."""
    return jax.random.key_data(key)[:2]
