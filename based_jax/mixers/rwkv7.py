"""RWKV-7's time mixing: a generalised delta rule with gates per channel (Peng et al. 2025).

    x_i = x + (x~ - x) mu_i for i in r, w, k, v, a, g;   x~ = the previous token
    r, k, v = x_r W_r, x_k W_k, x_v W_v;   a = sigmoid(LoRA_a(x_a));   g = sigmoid(x_g G_1) G_2
    log w = -e^{-1/2} sigmoid(LoRA_w(x_w)), LoRA_w with tanh inside
    kk = l2norm(k * k_k);   k <- k * (1 + (a - 1) * k_a)
    S_t = diag(w_t) S_{t-1} - (a_t * kk_t) (kk_t^T S_{t-1}) + k_t v_t^T,   o_t = S_t^T r_t
    y = ((GroupNorm(o) + (sum_c r k r_k) v) * g) W_o

Per head (Zoology's code). RWKV-7 also blends the first layer's values into those of deeper layers; this mixer
does not, as in Zoology's code. The projections are initialised like the other mixers'. Zoology's class uses
Xavier with a gain of 2^-2.5, but its models redraw them with a standard deviation of 0.02.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Share, Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.initializers import named, zeros
from based_jax.mixers.rwkv_layer import RWKVMemory, RWKVMemoryState
from based_jax.typing import Array, Float, State

HEADS = ("heads", "head_dim")


@register("rwkv7")
class RWKV7(RWKVMemory):
    """RWKV-7 time mixing.

    Attributes:
        head_dim: channels per head; default 64, or the next larger divisor of d_model.
        decay_rank, gate_rank, rate_rank: inner widths of the low-rank maps to w, g and a.
        removal_init: initial k_k, 0.85 in RWKV-7's code. With Zoology's 0 it never trains, and nothing is
            erased: kk enters quadratically, so its gradient is zero at 0.
        norm_eps: epsilon of the group norm, multiplied by head_dim.
        norm_affine: scale and shift the normed outputs.
        implementation: passed to `ops.generalized_delta_rule`.
    """

    head_option: ClassVar[str] = "head_dim"

    head_dim: Size | None = None
    decay_rank: Size = 16
    gate_rank: Size = 64
    rate_rank: Size = 16
    removal_init: Share = 0.85
    norm_eps: Epsilon = 1e-5
    norm_affine: bool = True
    implementation: str | None = None

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        _, width = shape = self.layout()

        def per_channel(name: str, value: float) -> Array:
            return self.param(name, named(nn.initializers.constant(value), *HEADS), shape)

        previous, shift = context.run(ops.token_shift, x, initial_state=state and state.shift)
        mix = self.param("mix", zeros(None, "embed"), (6, self.d_model))
        x_r, x_w, x_k, x_v, x_a, x_g = (x + (previous - x) * mu for mu in mix.astype(self.wide))

        def low_rank(x: Array, name: str, activation: Any, bias: bool) -> Array:
            inner = self.linear(getattr(self, f"{name}_rank"), "embed", None, name=f"{name}_down")(x)
            return self.linear(shape, None, *HEADS, bias=bias, name=f"{name}_up")(activation(inner))

        named_inputs = {"receptance": x_r, "key": x_k, "value": x_v}
        r, k, v = (self.to_heads(*shape, name=name)(inputs) for name, inputs in named_inputs.items())
        log_decay = -math.exp(-0.5) * jax.nn.sigmoid(low_rank(x_w, "decay", jnp.tanh, True).astype(self.wide))
        rate = jax.nn.sigmoid(low_rank(x_a, "rate", jnp.asarray, True).astype(self.wide))
        gate = low_rank(x_g, "gate", jax.nn.sigmoid, False)
        # Do not round kk to bfloat16: it would not be of unit length, and the state would grow.
        removal = ops.l2_norm(k.astype(self.wide) * per_channel("removal", self.removal_init))
        k = k * (1 + (rate - 1) * per_channel("key_rate", 0.0))
        options: dict[str, Any] = {"scale": 1.0, "implementation": self.implementation}
        options |= {"initial_state": state and state.memory}
        rule = (r, k, v, -removal, removal * rate, log_decay)
        y, memory = context.run(ops.generalized_delta_rule, *rule, **options)

        scale, bias = jnp.ones(shape), jnp.zeros(shape)
        if self.norm_affine:
            scale, bias = per_channel("norm_scale", 1.0), per_channel("norm_bias", 0.0)
        y = ops.layer_norm(y, scale, bias, self.norm_eps * width)
        own = jnp.sum(r * k * per_channel("bonus", 0.0), axis=-1, keepdims=True)
        return self.to_output(*HEADS, name="out")((y + own * v) * gate), RWKVMemoryState(shift, memory)
