"""H3: a shift and a diagonal state space between three projections (H3, section 3; Zoology's code).

    k <- shift(k) + D1 k;   shift(k)_t = sum_{l < d_state} c_l k_{t-l},   c_l = sum_n B_n C_{n+l}   (channel)
    y_t = (S4D(k v^T)_t + D2 k_t v_t^T)^T q_t                                                        (head)
    out = concat_heads(y) W_o + b_o

A head has p channels, so that k v^T is p x p, and one S4D of d_state / 2 complex modes for all its entries:
A_n = -exp(r_n) + i w_n, discretised by the bilinear rule with step dt.
"""

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Positive, Size, States
from based_jax.mixers.context import Context
from based_jax.mixers.contract import Mixer, MixerSummary, named, uniform
from based_jax.mixers.registry import register
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_divisible


class H3State(NamedTuple):
    """What both state spaces keep; of fixed size."""

    shift: ops.LongConvState
    """the last d_state keys"""
    ssm: ops.DiagonalSSMState


@register("h3")
class H3(Mixer):
    """H3 with a shift and a diagonal state space.

    Attributes:
        d_state: taps of the shift, and twice the modes of the diagonal state space; even.
        head_dim: channels per head p.
        dt_min, dt_max: range of the initial steps, drawn log-uniformly.
        implementation: of `ops.diagonal_ssm` and `ops.long_conv`.
    """

    row: ClassVar[MixerSummary] = MixerSummary(
        equation="q . S4D(shift(k) v^T)",
        training="N log N D p",
        state="D d_state",
        decoding="p D d_state",
        source="Fu et al. 2022; Zoology's code",
    )

    d_state: States = 64
    head_dim: Size = 1
    dt_min: Positive = 1e-3
    dt_max: Positive = 1e-1
    implementation: str | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        expect_divisible("d_model", self.d_model, "head_dim", self.head_dim)
        expect(self.d_state % 2 == 0, "d_state", self.d_state, "even and at least 2")
        return self.d_model // self.head_dim

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        batch, length, width = x.shape
        heads, head_dim = self.heads, self.head_dim
        q, k, v = (self.to_heads(heads, head_dim, bias=True, name=name)(x) for name in "qkv")
        options: dict[str, Any] = {"implementation": self.implementation}
        taps, skip = self._shift()
        k = k.reshape(batch, length, width)
        k, shift = context.run(
            ops.long_conv, k, taps, skip=skip, initial_state=state and state.shift, **options
        )
        log_a, weight, skip = self._diagonal()
        kv = k.reshape(v.shape)[..., None] * v[..., None, :]
        options |= {"initial_state": state and state.ssm, "skip": skip}
        y, ssm = context.run(
            ops.diagonal_ssm, kv.reshape(batch, length, heads, head_dim**2), log_a, weight, **options
        )
        # As the authors order the channels: heads last.
        y = jnp.einsum("bnha,bnhac->bnch", q, y.reshape(kv.shape))
        return self.to_output("head_dim", "heads", bias=True, name="out")(y), H3State(shift, ssm)

    @nn.nowrap
    def _shift(self) -> tuple[Array, Array]:
        """Taps (d_state, D) of the shift, and D1."""
        shape = (self.d_model, self.d_state)

        def present(key: Array, shape: tuple[int, ...]) -> Array:
            return jnp.zeros(shape).at[:, 0].set(1)

        b = self.param("shift_b", named(present, "embed", None), shape)
        c = self.param("shift_c", named(uniform(self.d_state**-0.5), "embed", None), shape)
        skip = self.param("shift_skip", named(nn.initializers.normal(1.0), "embed"), (self.d_model,))
        # The correlation of c with b is a convolution of c backwards.
        taps = ops.long_conv(c.T[None, ::-1].astype(self.wide), b.T.astype(self.wide))[0, ::-1]
        return taps, skip

    def _diagonal(self) -> tuple[Array, Array, Array]:
        """log_a and weight (H, modes) of the diagonal state space, and D2."""
        heads, modes = self.heads, self.d_state // 2
        axes = ("heads", None)

        def log_steps(key: Array, shape: tuple[int, ...]) -> Array:
            return jax.random.uniform(key, shape, minval=math.log(self.dt_min), maxval=math.log(self.dt_max))

        def frequencies(key: Array, shape: tuple[int, ...]) -> Array:
            return jnp.broadcast_to(math.pi * jnp.arange(shape[1], dtype=jnp.float32), shape)

        def ones(key: Array, shape: tuple[int, ...]) -> Array:
            return jnp.zeros(shape).at[..., 0].set(1)

        log_dt = self.param("log_dt", named(log_steps, "heads"), (heads,))
        rate = self.param("log_rate", named(nn.initializers.constant(math.log(0.5)), *axes), (heads, modes))
        frequency = self.param("frequency", named(frequencies, *axes), (heads, modes))
        pairs = (heads, modes, 2)
        b = self.param("b", named(ones, *axes, None), pairs)
        c = self.param("c", named(nn.initializers.normal(math.sqrt(0.5)), *axes, None), pairs)
        skip = self.param("skip", named(nn.initializers.normal(1.0), "heads"), (heads,))

        a = jnp.stack([-jnp.exp(rate), frequency], axis=-1)
        a, b, c, dt = (z.astype(self.wide) for z in (a, b, c, jnp.exp(log_dt)))
        return *ops.discretize_bilinear(a, b, c, dt), skip

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return H3State(
            ops.init_long_conv_state(batch_size, self.d_state, self.d_model, dtype),
            ops.init_diagonal_ssm_state(batch_size, self.heads, self.head_dim**2, self.d_state // 2),
        )

    def state_size(self, length: int) -> int:
        """d d_state (Based, appendix E.2), which counts neither the shift nor the p x p entries of a head."""
        return self.d_model * self.d_state
