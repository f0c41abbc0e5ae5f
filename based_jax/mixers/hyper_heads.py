"""What both forms of HyperAttention share: queries, keys and values per slot of a tuple, an output map.

    q = x W_q;   k_a, v_a = x W_ka, x W_va   for each slot a = 1 .. n - 1, or one W_k, W_v for all of them
    y = the form's sum over tuples, per head;   out = concat_heads(y) W_o

Definitions G.1 (shared) and G.3 (not) of Ustaomeroglu and Qu. The last value factor there, V^n, is a linear
map after each head, and so a part of W_o. With keys as wide as values, shared maps have 4 D^2 parameters, as
attention has, others 2 n D^2.
"""

import jax.numpy as jnp
from flax import linen as nn

from based_jax.fields import Repeats, Size
from based_jax.mixers.contract import Mixer, head_layout
from based_jax.typing import Array, Float
from based_jax.validate import expect


class HyperHeads(Mixer):
    """Heads that look at tuples of tokens.

    Attributes:
        num_heads: heads H; default d_model / 64.
        order: n; a query meets tuples of n - 1 tokens, so that 2 is attention.
        shared: one key and one value map for all slots of a tuple, or one of each per slot.
        strict: tuples of different tokens only; where there are none yet, outputs are 0.
    """

    num_heads: Size | None = None
    order: Repeats = 3
    shared: bool = True
    strict: bool = False

    @property
    def slots(self) -> int:
        """Tokens of a tuple."""
        expect(self.order >= 2, "order", self.order, "at least 2")
        return self.order - 1

    @property
    def maps(self) -> int:
        """Key maps, and value maps."""
        return 1 if self.shared else self.slots

    @nn.nowrap
    def projected(
        self, x: Float[Array, "B N D"], key_size: int, value_size: int
    ) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
        """Queries (B, N, H, K), and keys and values of every slot: the same arrays if slots share maps."""
        heads, _, _ = head_layout(self.d_model, self.num_heads)

        def maps(name: str, count: int, channels: int) -> tuple[Array, ...]:
            project = self.linear((count, heads, channels), "embed", None, "heads", "head_dim", name=name)
            return tuple(jnp.unstack(project(x), axis=2))

        (q,), times = maps("q", 1, key_size), self.slots // self.maps
        return q, maps("k", self.maps, key_size) * times, maps("v", self.maps, value_size) * times
