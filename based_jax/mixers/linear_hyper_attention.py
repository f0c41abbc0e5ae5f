"""HyperAttention without a softmax (Ustaomeroglu and Qu, appendix G.3), with a state of constant size.

    p_ij = sum_f phi(q_i) phi(k1_{j_1}) phi(k2_{j_2}) ..     of a tuple j = (j_1, j_2, ..), i >= j_1 >= j_2 ..
    y_i = sum_j p_ij v1_{j_1} * v2_{j_2} ..  /  sum_j p_ij

with the maps of `hyper_heads`. By default p = 1 + s + s^2 / 2 with s = sum_r q_i k1_{j_1} k2_{j_2} .. /
sqrt(feature_dim), the Taylor approximation of the softmax form's exponential. The paper sums over all tuples
of a whole row and leaves phi open; the causal sums (`ops.linear_hyper_attention`) and phi are ours.
"""

from typing import Any

from flax import linen as nn

from based_jax import ops
from based_jax.fields import Size, States
from based_jax.mixers.contract import Context, head_layout, register
from based_jax.mixers.hyper_heads import SIGNED, HyperHeads
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


@register("linear_hyper_attention")
class LinearHyperAttention(HyperHeads):
    """Linear attention over ordered tuples of tokens, with one state matrix per head and slot.

    Attributes:
        feature_dim: query and key channels per head.
        ordered: False takes all tuples of past tokens, in any order.
        feature_map: "taylor", or a name of `ops.feature_maps`, whose features are multiplied and summed.
        normalize: "sum" divides by the sum of the scores (not with "identity": it may vanish), "none" by
            nothing: outputs then grow as N^(n - 1).
        scale: factor of the queries; None for feature_dim^(-1/2).
        chunk_size: tokens per chunk; the result does not depend on it.
    """

    feature_dim: States = 16
    ordered: bool = True
    feature_map: str = "taylor"
    normalize: str = "sum"
    scale: float | None = None
    chunk_size: Size | None = None

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        _, _, value_size = head_layout(self.d_model, self.num_heads)
        width = self.feature_dim
        q, ks, vs = self.projected(x, width, value_size)
        scale = width**-0.5 if self.scale is None else self.scale
        options: dict[str, Any] = {"ordered": self.ordered, "strict": self.strict, "scale": scale}
        options |= {"feature_map": self.phi, "normalize": self.normalize, "chunk_size": self.chunk_size}
        y, state = context.run(ops.linear_hyper_attention, q, ks, vs, initial_state=state, **options)
        return self.to_output("heads", "head_dim", name="out")(y), state

    @property
    def phi(self) -> ops.FeatureMap:
        """The feature map.

        Raises:
            ValueError: unknown name, or `normalize` divides by a sum that may vanish.
        """
        phi = ops.feature_map(self.feature_map)
        safe = self.normalize != "sum" or self.feature_map not in SIGNED
        expect(safe, "normalize", self.normalize, f"'none' for feature_map = {self.feature_map!r}")
        if self.feature_map == "taylor":
            return ops.hyper_taylor_map(self.order)
        return phi

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, _, value_size = head_layout(self.d_model, self.num_heads)
        sizes = (heads, self.slots, self.phi.size(self.feature_dim), value_size)
        return ops.init_linear_hyper_state(batch_size, *sizes, normalize=self.normalize, dtype=self.wide)

    def state_size(self, length: int) -> int:
        """Return (n - 1) F d_h per head; one column more if outputs are divided by the sum of scores."""
        heads, _, value_size = head_layout(self.d_model, self.num_heads)
        columns = value_size + (self.normalize == "sum")
        return heads * self.slots * self.phi.size(self.feature_dim) * columns
