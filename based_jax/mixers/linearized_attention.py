"""Softmax attention that was linearized: exact in a window, features of older tokens (LoLCATs, 2410.10254).

    y_i = (sum_{i-left <= j <= i} exp(s_ij) v_j + sum_{j < i-left} w_ij v_j) / normaliser
    s_ij = scale q_i.k_j,   w_ij = exp(scale q_i.m + b) phi(A q_i).phi(B (k_j - m)),   rotary positions

Projections, norms and gate are those of `attention`, so that it takes their trained weights. A, B, m and b,
one for each head, are fresh: `based-jax train linearize` trains them until w estimates exp(s).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Count, States
from based_jax.mixers.contract import Context, register
from based_jax.mixers.initializers import named, zeros
from based_jax.mixers.softmax_heads import SoftmaxAttention
from based_jax.ops import feature_maps
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice

TAYLOR_DIM = 16
"""Based's feature dimension (Based, section 4.1)."""

MAPS = ("map_q", "map_k", "mean_key", "log_factor")
"""The parameters that `attention` does not have."""


def positive_maps() -> tuple[str, ...]:
    """Return the names of the feature maps whose products are not negative."""
    return tuple(name for name in feature_maps.names() if name != "identity")


@register("linearized_attention")
class LinearizedAttention(SoftmaxAttention):
    """Attention to a window and to features of older tokens, whose state does not grow.

    Attributes:
        left: past keys in the window, besides the query's own.
        feature_map: one of `positive_maps`, such as exp_half, softmax_dim (Hedgehog's) or taylor.
        feature_dim: channels that A and B map queries and keys to; None is twice those of a head for
            exp_half, 16 for taylor, and else those of a head.
    """

    left: Count = 63
    feature_map: str = "exp_half"
    feature_dim: States | None = None

    def setup(self) -> None:
        super().setup()
        expect(not self.dropout, "dropout", self.dropout, "0: dropped weights need all keys")
        heads, kv_heads, width = self.layout
        of_q, of_k = (named(self._directions, axis, "head_dim", None) for axis in ("heads", "kv_heads"))
        self.map_q = self.param("map_q", of_q, (heads, width, self.map_dim))
        self.map_k = self.param("map_k", of_k, (kv_heads, width, self.map_dim))
        self.mean_key = self.param("mean_key", zeros("kv_heads", "head_dim"), (kv_heads, width))
        self.log_factor = self.param("log_factor", zeros("heads"), (heads,))

    @property
    def map_dim(self) -> int:
        """Channels that queries and keys are mapped to."""
        width = self.layout[2]
        return self.feature_dim or {"exp_half": 2 * width, "taylor": TAYLOR_DIM}.get(self.feature_map, width)

    @nn.nowrap
    def _directions(self, key: Array, shape: tuple[int, int, int], dtype: Any = jnp.float32) -> Array:
        """Return the same orthonormal directions for all heads, so that (A q).(B k) is part of q.k."""
        _, width, size = shape
        rows = jax.nn.initializers.orthogonal()(jax.random.key(0), (width, size), dtype)
        factor = (width**-0.5 if self.scale is None else self.scale) * size**0.5
        return jnp.broadcast_to(factor**0.5 * rows, shape)

    def phi(self) -> ops.FeatureMap:
        """Return the feature map."""
        expect_choice("feature_map", self.feature_map, positive_maps())
        return ops.feature_map(self.feature_map)

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        options: dict[str, Any] = {"mean_key": self.mean_key, "log_factor": self.log_factor}
        options |= {"map_q": self.map_q, "map_k": self.map_k, "feature_map": self.phi()}
        return self.attend(x, state, context, ops.linearized_attention, **options)

    def in_full(self, x: Float[Array, "B N D"], context: Context) -> Float[Array, "B N D"]:
        """Return the outputs of attention to all keys, which the maps are trained to give; needs no state."""
        return self.attend(x, None, context, left=None)[0]

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        _, kv_heads, width = self.layout
        sizes = self.left, kv_heads, width, width, self.phi().size(self.map_dim)
        return ops.init_linearized_state(batch_size, *sizes, dtype, self.wide)

    def state_size(self, length: int) -> int:
        """Return 2 d min(N, w) with a window of w keys, and (d + H) F for the sums, of key heads."""
        _, kv_heads, width = self.layout
        features = self.phi().size(self.map_dim)
        return super().state_size(length) + kv_heads * (width + 1) * features
