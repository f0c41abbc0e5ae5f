"""Gated DeltaNet: the delta rule with a decay per head (Yang et al. 2024b, section 3; Zoology's code).

    q, k = l2norm(silu(conv(x W_q))), l2norm(silu(conv(x W_k)));   v = silu(conv(x W_v))
    beta = sigmoid(x W_b);   g = -exp(A_log) softplus(x W_a + dt_bias)
    S_t = e^{g_t} (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T
    y_t = (RMSNorm(S_t^T q_t / sqrt(d_k)) * silu(x W_g)) W_o

Per head; each convolution is depthwise, causal, of 4 tokens; values are twice as wide as keys.
"""

import jax
import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Factor
from based_jax.mixers.contract import register
from based_jax.mixers.delta_heads import DeltaHeads
from based_jax.mixers.initializers import log_of_uniform, log_uniform_steps, named
from based_jax.typing import Array


@register("gated_delta_net")
class GatedDeltaNet(DeltaHeads):
    """Gated DeltaNet: the delta rule with a decay per head.

    The torch code's parameter D is unused there and does not exist here.

    Attributes:
        expand_v: total value channels over d_model, rounded.
        use_gate: gate the normed output with silu(x W_g).
    """

    expand_v: Factor = 2.0
    use_gate: bool = True

    def queries_and_keys(self, q: Array, k: Array) -> tuple[Array, Array]:
        """Apply SiLU and scale each query and key (B, N, H, K) to unit length."""
        return ops.l2_norm(jax.nn.silu(q)), ops.l2_norm(jax.nn.silu(k))

    def gates(self, x: Array) -> tuple[Array, Array]:
        """Return beta and the logarithm g of the decay, both (B, N, H), for inputs x (B, N, D)."""
        heads = (self.v_heads,)
        A_log = self.param("A_log", named(log_of_uniform(1e-4, 16.0), "heads"), heads)
        dt_bias = self.param("dt_bias", named(log_uniform_steps(), "heads"), heads)
        steps = jax.nn.softplus(self.per_head(x, "step") + dt_bias)
        return jax.nn.sigmoid(self.per_head(x, "beta")), -jnp.exp(A_log.astype(self.wide)) * steps
