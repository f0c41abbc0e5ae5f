"""Take and replace rows of a state: every leaf has the batch as its first axis.

This makes recurrent models easy to serve: a row holds its whole past in memory that does not grow, and
moves from batch to batch with one copy.
"""

import jax
import jax.numpy as jnp

from based_jax.typing import Array, Int, State
from based_jax.validate import expect


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
    return jax.tree.map(lambda old, leaf: old.at[rows].set(leaf.astype(old.dtype), mode="drop"), state, new)


def row_bytes(state: State) -> int:
    """Return the bytes of one row, also of abstract states (`jax.eval_shape`)."""
    rows = row_count(state)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) // rows
