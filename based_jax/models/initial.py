"""Draw a model's initial layers: one program for each kind of layer, mapped over its layers."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.mixers.initializers import draw_together
from based_jax.typing import Array


def draw_layers(
    draws: Sequence[Callable[[Array], Any]], kinds: Sequence[Sequence[int]], key: Array
) -> dict[int, Any]:
    """Return the variables of every layer, drawn independently: they depend on `key` and its index alone.

    Args:
        draws: for each kind of layer the function from a key to its variables.
        kinds: for each kind the indices of its layers.
        key: for all layers.
    """
    found: dict[int, Any] = {}
    for draw, layers in zip(draws, kinds, strict=True):
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.array(layers, jnp.uint32))
        # `vmap` would need the memory of all layers' vectors at once.
        stacks: Any = cast(Any, lax.map)(partial(draw_together, draw), keys)
        for index, layer in enumerate(layers):
            found[layer] = jax.tree.map(operator.itemgetter(index), stacks)
    return found
