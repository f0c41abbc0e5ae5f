"""BigBird-like attention: a window, global tokens, random cells (Zaheer et al. 2020; Zoology's code).

    y_i = sum_j softmax_j(q_i . k_j / sqrt(d)) v_j   over j <= i with one of
          i - j <= 3 b,   j < 2 b,   (i, j) in one of the 2 x 2 cells whose corners are drawn at random

b is the block size; 3 b corners are drawn from (l_max - 1)^2 pairs, and only those below the diagonal stay.
As in Zoology's code the pattern masks dense attention: only `state_size` counts it as sparse.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from based_jax.fields import Count, Length, Share, Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import Array, Bool, Float, State
from based_jax.validate import expect_array


@register("bigbird")
class BigBird(SoftmaxHeads):
    """Softmax attention with BigBird's sparsity pattern; positions count from the start of each segment.

    Attributes:
        block_size: tokens per block, b.
        l_max: the random cells are drawn from the pairs of the first `l_max` tokens; later tokens have none.
        seed: seed of the random cells. A call without a state and with an rng "pattern" redraws them, as
            Zoology's code does in both training and evaluation.
    """

    is_pure: ClassVar[bool] = False

    num_heads: Size | None = 1
    rotary_fraction: Share = 0.0
    qkv_bias: bool = True
    out_bias: bool = True
    block_size: Size = 128
    l_max: Length = 1024
    seed: Count = 0

    def mix(
        self,
        x: Float[Array, "B N D"],
        state: State,
        context: Context,
        cells: Bool[Array, "M M"] | None = None,
    ) -> tuple[Array, State]:
        """Mix the tokens; `cells` replaces the random pairs (query, key) that the seed draws."""
        if cells is None:
            redraws = not context.has_state and self.has_rng("pattern")
            key = self.make_rng("pattern") if redraws else jax.random.key(self.seed)
            cells = random_cells(key, self.l_max, 3 * self.block_size)
        expect_array("cells", cells, ("M", "M"), "bool")
        allowed = Partial(_allowed, self.block_size, jnp.asarray(cells))
        return self.attend(x, state, context, allowed=allowed)

    def state_size(self, length: int) -> int:
        """Return 14 b d, Zoology's count: 7 b keys and values. `init_state` has slots for all tokens."""
        return 14 * self.block_size * self.d_model


def _allowed(block_size: int, cells: Array, i: Array, j: Array) -> Array:
    drawn = cells.at[i, j].get(mode="fill", fill_value=False)
    return (i - j <= 3 * block_size) | (j < 2 * block_size) | drawn


def random_cells(key: Array, length: int, count: int) -> Bool[Array, "M M"]:
    """Return a mask of `count` cells of 2 x 2 pairs (query, key), without cells on or above the diagonal."""
    if length == 1:
        return jnp.zeros((1, 1), bool)
    i, j = jax.random.randint(key, (2, count), 0, length - 1, jnp.int32)
    i = jnp.where(i > j, i, length)  # no such row: dropped
    down, right = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]]).T[:, :, None]
    return jnp.zeros((length, length), bool).at[i + down, j + right].set(True, mode="drop")
