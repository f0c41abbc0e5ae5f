"""Linear HyperFeatureAttention (Ustaomeroglu and Qu, Definition 5.1), causal, with a state of constant size.

    q^a, k^a = phi(x W_q^a), phi(x W_k^a)   A factors per head;   v = x W_v, or prod_a x W_v^a
    S_t = S_{t-1} + (k^1_t x ... x k^A_t) v_t^T,   y_t = S_t^T (q^1_t x ... x q^A_t)
        = sum_{j<=t} prod_a q^a_t . k^a_j  v_j,    out = concat_heads(norm(y)) W_o

x between factors is the tensor product, so a state has prod_a d_a rows; the paper states only that HFA can be
made linear. Its form has no phi and no norm; here heads are normed by default, since the sum of signed scores
may vanish. The mixer has no positions: a short convolution or another layer must provide them.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Repeats, Size, States
from based_jax.mixers.contract import Context, Mixer, head_layout, register
from based_jax.mixers.hyper_heads import SIGNED
from based_jax.mixers.initializers import ones
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice

NORMS = ("sum", "rms", "none")
FEATURE_DIMS = {1: 64, 2: 16, 3: 8}
"""Default channels per factor by order (64, 256 and 512 features of a head); 4 for higher orders."""


@register("linear_hyper_feature_attention")
class LinearHyperFeatureAttention(Mixer):
    """Linear attention whose scores are products of the scores of several features.

    Attributes:
        num_heads: heads H; default d_model / 64.
        order: A, factors of a score; 1 is plain linear attention.
        feature_dim: query/key channels per factor; default 64, 16, 8 for order 1, 2, 3, and 4 above.
        feature_map: phi of each factor, a name of `ops.feature_maps.names()`.
        norm: "rms" norms each head's output; "sum" divides by the sum of the scores, which must not be
            negative (not with "identity"); "none" is the paper's form. In one trial on MQAR (16 tokens, 4
            pairs, width 64, 600 steps) the defaults had learned it after 240 steps, "pos_elu" with "sum"
            after 480, and "none" reached 98 % at the end.
        norm_eps: epsilon of norm "rms".
        value_product: use products of A maps of x as values, as in the paper's definition.
        chunk_size: tokens per chunk; the result does not depend on it.
    """

    num_heads: Size | None = None
    order: Repeats = 2
    feature_dim: States | None = None
    feature_map: str = "identity"
    norm: str = "rms"
    norm_eps: Epsilon = 1e-5
    value_product: bool = False
    chunk_size: Size | None = None

    @property
    def width(self) -> int:
        """Channels of a factor, before phi."""
        return FEATURE_DIMS.get(self.order, 4) if self.feature_dim is None else self.feature_dim

    @property
    def phi(self) -> ops.FeatureMap:
        """The map of each factor."""
        name = self.feature_map
        phi = ops.feature_map(name)
        expect_choice("norm", self.norm, NORMS)
        is_safe = self.norm != "sum" or name not in SIGNED
        expect(is_safe, "norm", self.norm, f"'rms' or 'none' with feature_map = {name!r}: sums may vanish")
        return phi

    @property
    def feature_size(self) -> int:
        """F, features of a head: all products of one channel per factor."""
        return self.phi.size(self.width) ** self.order

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        _, _, head_dim = head_layout(self.d_model, self.num_heads)
        v = self._project(x, "v", self.order if self.value_product else 1, head_dim).prod(axis=3)
        options: dict[str, Any] = {"kind": "linear", "normalize": self.norm == "sum"}
        options |= {"scale": self.phi.size(self.width) ** -0.5, "chunk_size": self.chunk_size}
        qs, ks = self._factors(x, "q"), self._factors(x, "k")
        y, state = context.run(ops.hyper_feature_attention, qs, ks, v, initial_state=state, **options)
        if self.norm == "rms":
            y = ops.rms_norm(y, self.param("norm_scale", ones("head_dim"), (head_dim,)), self.norm_eps)
        return self.to_output("heads", "head_dim", name="out")(y), state

    @nn.nowrap
    def _project(
        self, x: Float[Array, "B N D"], name: str, factors: int, channels: int
    ) -> Float[Array, "B N H A K"]:
        """Project x to `factors` factors of `channels` channels per head."""
        heads, _, _ = head_layout(self.d_model, self.num_heads)
        return self.linear((heads, factors, channels), "embed", "heads", None, "head_dim", name=name)(x)

    @nn.nowrap
    def _factors(self, x: Float[Array, "B N D"], name: str) -> tuple[Float[Array, "B N H _"], ...]:
        """Return phi of the query or key factors, in float32 because exponentials lose precision in less."""
        factors = self._project(x, name, self.order, self.width)
        return tuple(jnp.unstack(self.phi.features(factors.astype(self.wide)), axis=3))

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        return ops.init_linear_attention_state(batch_size, heads, self.feature_size, head_dim, self.wide)

    def state_size(self, length: int) -> int:
        """Return F d_h per head, and F more for the sum of the scores."""
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        return heads * self.feature_size * (head_dim + (self.norm == "sum"))
