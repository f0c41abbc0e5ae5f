"""Rows of a state, and how many tokens a state can hold.

Every leaf has the batch as its first axis. This makes recurrent models easy to serve: a row holds its whole
past in memory that does not grow, and moves from batch to batch with one copy.

States that grow with the text, such as KV caches, have capacities that are powers of two, so few sizes are
compiled, and a filled state can be moved to a larger one.
"""

import bisect
import functools
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.models import ModelConfig
from based_jax.models.language_model import LanguageModel, make_mixer
from based_jax.registry import cached
from based_jax.typing import Array, Int, State
from based_jax.validate import expect

SMALLEST_CAPACITY = 64
_ANY_LENGTH = 1 << 30


def row_count(state: State) -> int:
    """Return the number of rows of a state."""
    leaves = jax.tree.leaves(state)
    expect(bool(leaves), "state", type(state).__name__, "a state with at least one array")
    counts = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    expect(len(counts) == 1 and None not in counts, "state", sorted(map(str, counts)), "one number of rows")
    return leaves[0].shape[0]


def take_rows(state: State, rows: Int[Array, " R"]) -> State:
    """Return the rows with these indices, in this order; an index may be repeated."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0), state)


def put_rows(state: State, new: State, rows: Int[Array, " R"]) -> State:
    """Return `state` with row rows[i] replaced by row i of `new`; indices out of range are ignored.

    Args:
        new: R rows of the same model and capacity.
        rows: their new indices, each at most once.
    """

    def put(old: Array, leaf: Array) -> Array:
        leaf = leaf if leaf.dtype == old.dtype else leaf.astype(old.dtype)  # keys have no astype outside jit
        return old.at[rows].set(leaf, mode="drop")

    return jax.tree.map(put, state, new)


def row_bytes(state: State) -> int:
    """Return the bytes of one row, also of abstract states (`jax.eval_shape`)."""
    rows = row_count(state)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) // rows


def state_bytes(module: Any, length: int) -> int:
    """Return the bytes of a model's or a mixer's state of one sequence of this length."""
    return row_bytes(jax.eval_shape(lambda: module.init_state(1, length)))


@cached(maxsize=32)
def state_grows(model: LanguageModel) -> bool:
    """Return whether the size of a model's state depends on how many tokens it must hold."""
    short, long = (jax.eval_shape(lambda size=size: model.init_state(1, size)) for size in (1, 1 << 16))
    return jax.tree.map(lambda leaf: leaf.shape, short) != jax.tree.map(lambda leaf: leaf.shape, long)


def capacity_for(model: LanguageModel, tokens: int) -> int | None:
    """Return the `max_length` to pass to `init_state` for this many tokens; None if the state does not grow.

    It is the next power of two, and at least `SMALLEST_CAPACITY`.
    """
    hashable: Any = model  # flax makes modules hashable, which type checkers do not see
    return max(SMALLEST_CAPACITY, 1 << (tokens - 1).bit_length()) if state_grows(hashable) else None


def with_capacity(model: LanguageModel, state: State, max_length: int) -> State:
    """Move a state to arrays for `max_length` tokens per row.

    A state without caches does not depend on `max_length` and is returned unchanged.

    Args:
        state: any number of rows. No row may hold more than `max_length` tokens, or have read more than the
            state was made for: token p is then in slot p of both.
        max_length: largest number of tokens that a row will have.

    Raises:
        ValueError: a state of another model.
    """
    rows = row_count(state)
    shapes = jax.eval_shape(lambda: model.init_state(rows, max_length))
    is_ours = jax.tree.structure(shapes) == jax.tree.structure(state)
    expect(is_ours, "state", type(state).__name__, "a state of this model")
    if jax.tree.all(jax.tree.map(lambda new, old: new.shape == old.shape, shapes, state)):
        return state

    def moved(new: jax.Array, old: jax.Array) -> jax.Array:
        filled = tuple(slice(min(sizes)) for sizes in zip(new.shape, old.shape, strict=True))
        return old if new.shape == old.shape else new.at[filled].set(old[filled])

    return jax.tree.map(moved, model.init_state(rows, max_length), state)


def token_limit(model: LanguageModel, max_length: int) -> int | None:
    """Return how many tokens a row of `model.init_state(B, max_length)` may read; None if there is no limit.

    Learned positions end with their table. A layer whose state grows with `max_length` ends there, or where
    its state stops growing: a long convolution has a fixed number of taps.
    """
    config = model.config
    limits = [config.max_positions] if config.max_positions else []
    for letter in sorted(set(config.schedule)):
        mixer = make_mixer(config, config.schedule.index(letter))
        own = getattr(mixer, "max_length", None)  # cosformer's weights are made for its longest text
        limits += [own] if own else []
        limits += _capacity_limit(mixer, max_length)
    return min(limits, default=None)


@cached(maxsize=64)
def longest_text(config: ModelConfig) -> int | None:
    """Return how many tokens a model can read, whatever the size of its state; None if there is no limit."""
    found = token_limit(LanguageModel(config), _ANY_LENGTH)
    return None if found == _ANY_LENGTH else found


def _capacity_limit(mixer: Any, max_length: int) -> list[int]:
    """Return the limit set by one layer's state, if there is one, as a list of at most one."""
    size = functools.partial(state_bytes, mixer)
    full, beyond = size(max_length), size(max_length + (1 << 16))
    if size(1) == beyond:
        return []
    if full < beyond:
        return [max_length]
    return [bisect.bisect_left(range(max_length), full, lo=1, key=size)]  # the first with full capacity
