"""Draw the parameters of layers of one kind in one loop: a program per kind of layer, whatever the depth."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal, jaxpr_as_fun

from based_jax.models.block import Block
from based_jax.typing import Array, Float


def draw_layers(
    blocks: Sequence[Block],
    kinds: Sequence[Sequence[int]],
    key: Array,
    h: Float[Array, "B N D"],
    **context: Any,
) -> list[Any]:
    """Return the variables of every block, drawn independently.

    Args:
        blocks: the bound layers.
        kinds: indices of the layers whose variables have the same shapes and distribution.
        key: for all layers.
        h, context: inputs of a layer, of which only shapes and dtypes matter.
    """
    drawn: dict[int, Any] = {}
    for layers in kinds:
        block = blocks[layers[0]].unbind()[0]
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.array(layers, np.uint32))
        alike = draw_alike(lambda key, block=block: block.init(key, h, **context), keys)
        drawn |= dict(zip(layers, alike, strict=True))
    return [drawn[layer] for layer in range(len(blocks))]


def draw_alike(draw: Callable[[Array], Any], keys: Array) -> list[Any]:
    """Return `draw` of every key.

    The loop is compiled once for all keys, and separates drawing from the copies of its results into arrays
    of their own, which XLA would otherwise fuse: a program as large as `draw` for every array. Arrays that do
    not depend on the key stay outside.
    """
    program, shapes = cast(Any, jax.make_jaxpr(draw, return_shape=True)(keys[0]))
    tree = cast(Any, jax.tree.structure(shapes))
    random: set[Any] = set(program.jaxpr.invars)
    for step in program.jaxpr.eqns:
        if any(not isinstance(value, Literal) and value in random for value in step.invars):
            random |= set(step.outvars)
    is_random = [not isinstance(value, Literal) and value in random for value in program.jaxpr.outvars]
    run = cast(Callable[[Array], list[Array]], jaxpr_as_fun(program))

    def random_ones(key: Array) -> list[Array]:
        return [array for array, chosen in zip(run(key), is_random, strict=True) if chosen]

    first = run(keys[0])
    if len(keys) == 1:
        return [jax.tree.unflatten(tree, first)]
    together = cast(list[Array], lax.map(random_ones, keys))
    results: list[Any] = []
    for number in range(len(keys)):
        own = iter(together)
        leaves: list[Any] = [
            lax.index_in_dim(next(own), number, keepdims=False) if chosen else array
            for array, chosen in zip(first, is_random, strict=True)
        ]
        results.append(jax.tree.unflatten(tree, leaves))
    return results
