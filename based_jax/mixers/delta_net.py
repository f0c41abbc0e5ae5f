"""DeltaNet: linear attention with the delta rule (Schlag et al. 2021; Yang et al. 2024a).

    q, k = norm(f(conv(x W_q))), norm(f(conv(x W_k)));   v = silu(conv(x W_v));   beta = sigmoid(x W_b)
    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T;   y_t = RMSNorm(S_t^T q_t / sqrt(d_k)) W_o

Per head; each convolution is depthwise, causal, of 4 tokens (Zoology's code).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from based_jax import ops
from based_jax.mixers.contract import register
from based_jax.mixers.delta_heads import DeltaHeads
from based_jax.typing import Array
from based_jax.validate import expect_choice

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "elu": lambda x: jax.nn.elu(x) + 1,
    "identity": lambda x: x,
}
"""f by name; "elu" is elu + 1, which is positive."""


@register("delta_net")
class DeltaNet(DeltaHeads):
    """DeltaNet: the delta rule without decay.

    Attributes:
        qk_activation: f, "silu", "relu", "elu" (elu + 1) or "identity".
        qk_norm: "l2" (unit length), or "sum" (entries sum to 1). With "silu" and "identity" that sum may be
            near 0 or negative; keys and state can then be large, as in Zoology's code.
        use_beta: False sets beta to 1, or 2 with `allow_neg_eigval`.
    """

    qk_activation: str = "silu"
    qk_norm: str = "l2"
    use_beta: bool = True

    def queries_and_keys(self, q: Array, k: Array) -> tuple[Array, Array]:
        """Apply the activation `qk_activation` and the norm `qk_norm` to q and k (B, N, H, K)."""
        expect_choice("qk_activation", self.qk_activation, tuple(ACTIVATIONS))
        expect_choice("qk_norm", self.qk_norm, ("l2", "sum"))
        q, k = (ACTIVATIONS[self.qk_activation](x) for x in (q, k))
        if self.qk_norm == "l2":
            return ops.l2_norm(q), ops.l2_norm(k)
        sums = (x.sum(-1, keepdims=True) for x in (q, k))
        # Keys that relu zeroed stay zero.
        q, k = (x / jnp.where(total == 0, 1, total) for x, total in zip((q, k), sums, strict=True))
        return q, k

    def gates(self, x: Array) -> tuple[Array, None]:
        """Return beta = sigmoid(x W_b), or 1 without `use_beta`, (B, N, H) for x (B, N, D); and no decay."""
        if self.use_beta:
            return jax.nn.sigmoid(self.per_head(x, "beta")), None
        return jnp.ones((*x.shape[:2], self.v_heads), self.wide), None
