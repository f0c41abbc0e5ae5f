"""GLA, gated linear attention (Yang et al. 2023, section 4; Zoology's code).

    q, k, v = x W_q, x W_k, x W_v;   g = log sigmoid(x W_1 W_2 + b) / 16        one gate per key channel
    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   y_t = S_t^T q_t / sqrt(d_k)     per head
    out = (RMSNorm(y) * silu(x W_g)) W_o

W_1 maps to 16 channels only. Dividing by 16 keeps gates near 1 at initialisation.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Between, Factor, Positive, Repeats, Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.gated_heads import GatedHeads, activation
from based_jax.mixers.initializers import named, uniform
from based_jax.typing import Array, Float, State

LogGate = Annotated[float, Between(-1e12, 0)]


class GLAState(NamedTuple):
    """The matrix of each head, and the last inputs of the convolutions, if any."""

    memory: ops.LinearRecurrenceState
    conv: ops.ShortConvState | None


@register("gla")
class GLA(GatedHeads):
    """Gated linear attention.

    Attributes:
        gate_low_rank_dim: rank of the map from x to the gates.
        gate_logit_normalizer: the log-gates are divided by this.
        least_log_gate: lower bound of the log-gates; None for no bound.
        num_kv_heads: heads of k, v and the gates, a divisor of num_heads; default num_heads.
        kernel_size: taps of short convolutions of q, k and v, each followed by silu; None for none.
    """

    expand_k: Factor = 0.5
    gate_low_rank_dim: Size = 16
    gate_logit_normalizer: Positive = 16.0
    least_log_gate: LogGate | None = None
    kernel_size: Repeats | None = None

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        qkv, conv = self.projected(x), None
        if self.kernel_size is not None:
            qkv, conv = self._convolve(qkv, self.kernel_size, state and state.conv, context)
        q, k, v = qkv
        q, k = (activation("qk_activation", self.qk_activation)(a) for a in (q, k))
        low = self.linear(self.gate_low_rank_dim, "embed", None, name="decay_in")(x)
        options = {"bias": True, "dtype": self.wide}
        axes = (None, "kv_heads", "head_dim")
        logits = self.linear(k.shape[2:], *axes, **options, name="decay_out")(low)
        log_decay = jax.nn.log_sigmoid(logits) / self.gate_logit_normalizer
        if self.least_log_gate is not None:
            log_decay = jnp.maximum(log_decay, self.least_log_gate)
        k, v, log_decay = self.for_all_heads(k, v, log_decay)
        y, memory = self.recur(q, k, v, log_decay, state and state.memory, context)
        return self.read_out(self.rms_normed(y), x), GLAState(memory, conv)

    @nn.nowrap
    def _convolve(
        self, heads: list[Array], taps: int, state: State, context: Context
    ) -> tuple[list[Array], State]:
        """Convolve q, k and v in one call."""
        flat = [x.reshape(*x.shape[:2], -1) for x in heads]
        kernels = [
            self.param(f"{name}_conv", named(uniform(taps**-0.5), None, "heads"), (taps, x.shape[-1]))
            for name, x in zip("qkv", flat, strict=True)
        ]
        joined, kernel = jnp.concatenate(flat, axis=-1), jnp.concatenate(kernels, axis=-1)
        y, state = context.run(ops.short_conv, joined, kernel, initial_state=state)
        q_size, k_size = flat[0].shape[-1], flat[1].shape[-1]
        parts = jnp.split(jax.nn.silu(y), [q_size, q_size + k_size], axis=-1)
        return [part.reshape(x.shape) for part, x in zip(parts, heads, strict=True)], state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, key_size, value_size = self.layout()
        conv = None
        if self.kernel_size is not None:
            channels = heads * key_size + self.kv_heads * (key_size + value_size)
            conv = ops.init_short_conv_state(batch_size, channels, self.kernel_size, dtype)
        memory = ops.init_linear_recurrence_state(batch_size, heads, key_size, value_size, self.wide)
        return GLAState(memory, conv)
