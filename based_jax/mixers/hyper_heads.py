"""What both forms of HyperAttention share: queries, keys and values per slot of a tuple, an output map.

    q = x W_q;   k_a, v_a = x W_ka, x W_va   for each slot a = 1 .. n - 1, or one W_k, W_v for all of them
    y = the form's sum over tuples, per head;   out = concat_heads(y) W_o

Definitions G.1 (shared) and G.3 (not) of Ustaomeroglu and Qu. The last value factor there, V^n, is a linear
map behind each head, and so a part of W_o. With keys as wide as values, shared maps have 4 D^2 parameters, as
attention has, others 2 n D^2.
"""

from flax import linen as nn

from based_jax.fields import Repeats, Size
from based_jax.mixers.contract import Mixer, Projection, head_layout
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
    def project(
        self, x: Float[Array, "B N D"], name: str, maps: int, channels: int
    ) -> tuple[Float[Array, "B N H K"], ...]:
        """`maps` linear maps into heads, of one parameter."""
        heads, _, _ = head_layout(self.d_model, self.num_heads)
        axes = ("embed", None, "heads", "head_dim")
        y = Projection(
            (maps, heads, channels), axes, dtype=self.dtype, init_std=self.init_std, name=name
        )(x)  # fmt: skip
        return tuple(y[:, :, place] for place in range(maps))

    @nn.nowrap
    def of_slots(
        self, x: Float[Array, "B N D"], name: str, channels: int
    ) -> tuple[Float[Array, "B N H K"], ...]:
        """Keys or values of every slot: the same array in all places if they are shared."""
        return self.project(x, name, self.maps, channels) * (self.slots // self.maps)

    @nn.nowrap
    def read_out(self, y: Float[Array, "B N H V"]) -> Float[Array, "B N D"]:
        """The heads' outputs, mapped back."""
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        axes = ("heads", "head_dim", "embed")
        return Projection((self.d_model,), axes, inputs=2, dtype=self.dtype, init_std=out_std, name="out")(y)
