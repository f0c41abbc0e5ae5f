"""Sum a sequence over one interval per row, by a segment tree.

    y_i = sum_{first_i <= j <= last_i} x_j

The tree has sums of 1, 2, 4, ... neighbours; an interval is at most two of them on each level (Gu et al.
"Conv-Basis", algorithm 6). All rows go up the tree together, with two gathers per level.

Differences of running sums, P[last] - P[first - 1], take O(N) instead of O(N log N) but cancel: for 4096
positive numbers in float32, sums over 8 neighbours had relative errors of up to 1.1e-4, and of 1.3e-7 from
the tree, which adds only members of the interval.
"""

import jax.numpy as jnp

from based_jax.ops.core.op import op
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect_array


@op()
def interval_sums(
    x: Float[Array, "B N *rest"], first: Int[Array, " M"], last: Int[Array, " M"]
) -> Float[Array, "B M *rest"]:
    """Return sums of x along its second axis from `first` to `last`, both included.

    Args:
        x: the sequence; summed in its own dtype.
        first, last: ends of each interval. Intervals with last < first are empty, with sums exactly 0.
            Indices outside 0..N-1 contribute nothing.

    Returns:
        The sums, in the dtype of x.
    """
    expect_array("x", x, ("B", "N", *[None] * (x.ndim - 2)), "floating")
    expect_array("first", first, ("M",), "integer")
    expect_array("last", last, first.shape, "integer")
    length = x.shape[1]
    low, high = jnp.clip(first, 0, length), jnp.clip(last, -1, length - 1) + 1
    size = 1 << (length - 1).bit_length()
    level = jnp.pad(x, [(0, 0), (0, size - length)] + [(0, 0)] * (x.ndim - 2))
    total = jnp.zeros((x.shape[0], len(first), *x.shape[2:]), x.dtype)

    def node(level: Array, index: Array, wanted: Array) -> Array:
        index = jnp.clip(index, 0, level.shape[1] - 1)
        return jnp.where(wanted.reshape(-1, *[1] * (x.ndim - 2)), level[:, index], 0)

    while True:
        # Half-open [low, high) in nodes of this level; unpaired ends are added at this level.
        left, right = (low < high) & (low % 2 == 1), (low < high) & (high % 2 == 1)
        total = total + node(level, low, left) + node(level, high - 1, right)
        if level.shape[1] == 1:
            return total
        low, high = (low + left) // 2, (high - right) // 2
        level = level.reshape(x.shape[0], level.shape[1] // 2, 2, *x.shape[2:]).sum(axis=2)
