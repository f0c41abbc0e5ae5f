"""Base class of both HyperAttentions: queries, keys and values per slot of a tuple, output map.

    q = x W_q;   k_a, v_a = x W_ka, x W_va   for each slot a = 1 .. n - 1, or one W_k, W_v for all of them
    y = the form's sum over tuples, per head;   out = concat_heads(y) W_o

Ustaomeroglu and Qu, Definitions G.1 (shared maps) and G.3 (separate maps). Their last value factor, V^n, is a
linear map after each head and thus part of W_o. With keys as wide as values, shared maps have 4 D^2
parameters, as attention, and separate ones 2 n D^2.
"""

import jax.numpy as jnp
from flax import linen as nn

from based_jax.fields import Repeats, Size
from based_jax.mixers.contract import Mixer, head_layout
from based_jax.typing import Array, Float
from based_jax.validate import expect

SIGNED = ("identity",)
"""Feature maps whose products may be negative, so that their sum may vanish"""


class HyperHeads(Mixer):
    """Heads that attend to tuples of tokens.

    Attributes:
        num_heads: heads H; default d_model / 64.
        order: n; a query attends to tuples of n - 1 tokens, so 2 is attention.
        shared: True for one key and one value map for all slots of a tuple, False for one of each per slot.
        strict: use tuples of different tokens only; outputs are 0 while there are none.
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
        """Return queries (B, N, H, K), and keys and values of every slot (the same arrays if shared)."""
        heads, _, _ = head_layout(self.d_model, self.num_heads)

        def maps(name: str, count: int, channels: int) -> tuple[Array, ...]:
            project = self.linear((count, heads, channels), "embed", None, "heads", "head_dim", name=name)
            return tuple(jnp.unstack(project(x), axis=2))

        (q,), times = maps("q", 1, key_size), self.slots // self.maps
        return q, maps("k", self.maps, key_size) * times, maps("v", self.maps, value_size) * times
