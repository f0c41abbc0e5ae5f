"""Share one stream between all layers while a loop makes single tokens.

Every layer's state records how far the rows have come, equally in all layers. While single tokens are made,
without padding and in one segment, that is the stream before the loop plus the number of tokens made. Carried
layer by layer it would be computed layer by layer: on a GPU, two kernels each.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from based_jax.ops.core.stream import Stream
from based_jax.typing import Array, Bool, Int, State


class Carried(NamedTuple):
    """A state without what all of its streams share."""

    arrays: list[Array]
    """the other leaves, in the order of the state"""
    broken: Bool[Array, "streams B"]


class LayerStreams:
    """The streams of a model's state as they are before a loop over single tokens."""

    def __init__(self, state: State) -> None:
        self._leaves, self._tree = jax.tree.flatten(state, is_leaf=_is_stream)

    def strip(self, state: State) -> Carried:
        """Return the loop's carry for a state: the one before the loop, or a later one."""
        leaves = self._tree.flatten_up_to(state)
        broken = jnp.array([leaf.broken for leaf in leaves if _is_stream(leaf)])
        return Carried([leaf for leaf in leaves if not _is_stream(leaf)], broken)

    def within(self, carried: Carried, made: Int[Array, "..."]) -> State:
        """Return the state after `made` tokens, with the first layer's stream, computed once, in all."""
        first = next((leaf for leaf in self._leaves if _is_stream(leaf)), None)
        return self._restore(carried, made, [first if _is_stream(leaf) else leaf for leaf in self._leaves])

    def after(self, carried: Carried, made: Int[Array, "..."]) -> State:
        """Return the state after the loop: each stream from its own layer, whose memory it can reuse."""
        return self._restore(carried, made, self._leaves)

    def _restore(self, carried: Carried, made: Array, before: list[Any]) -> State:
        arrays, broken = iter(carried.arrays), iter(carried.broken)

        def moved(leaf: Any) -> Any:
            if not _is_stream(leaf):
                return next(arrays)
            return dataclasses.replace(leaf, length=leaf.length + made, broken=next(broken))

        return jax.tree.unflatten(self._tree, [moved(leaf) for leaf in before])


def _is_stream(node: Any) -> bool:
    return isinstance(node, Stream)
