"""Mamba-2, the state space dual (Dao and Gu 2024, sections 6 and 7; Zoology's code).

    z, x, B, C, dt = split(u W_in);   x, B, C = silu(conv(x, B, C));   dt = softplus(dt + dt_bias)
    S_t = exp(dt_t A) S_{t-1} + B_t (dt_t x_t)^T,   y_t = S_t^T C_t + D x_t,   A = -exp(A_log)     per head
    out = (RMSNorm(y * silu(z)) * scale) W_out

A, D and dt are one number per head of x; the heads of a group share B and C, and are normed together, after
the gate. If the heads take fewer than E channels, the others are z_0 * x_0, gated by silu alone.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import AtLeastZero, Epsilon, Factor, Positive, Repeats, Size, States
from based_jax.mixers.contract import Context, Mixer, default_heads, register
from based_jax.mixers.initializers import log_of_uniform, log_uniform_steps, named, ones
from based_jax.mixers.mamba import MambaState, inner_width
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_divisible


@register("mamba2")
class Mamba2(Mixer):
    """Mamba-2: heads of a state space model with one decay each.

    Attributes:
        d_state: states per channel, 128 as in Mamba-2's code (Zoology's grid: 8, 16, 24).
        head_dim: channels per head; default 64, or the next larger divisor of the channels in heads.
        num_groups: pairs of B and C, each shared by neighbouring heads.
        norm_groups: groups of neighbouring channels that are normed together; default num_groups.
        d_conv: taps of the convolution.
        expand: channels over d_model; a fraction of a channel is dropped.
        ssm_channels: channels in heads; default all.
        norm: apply a root-mean-square norm to each group.
        norm_before_gate: apply the norm before the gate, not after it.
        norm_eps: epsilon of the norm.
        skip_per_channel: learn D per channel, not per head.
        bias, conv_bias: add biases in the outer projections, and in the convolution.
        dt_least, dt_most: bounds of the step sizes; dt_most = None for no upper bound.
        decay_min, decay_max: range of -A at initialisation.
        dt_min, dt_max, dt_floor: range and lower bound of the initial step sizes, see `Mamba`.
        num_layers: None initialises the projections like the other mixers, a number as the papers' Mamba
            models of this many layers; see `Mamba`.
        chunk_size: tokens per chunk (256 in Mamba-2's code); the result does not depend on it.
        implementation: passed to `ops.linear_recurrence`.
    """

    d_state: States = 128
    head_dim: Size | None = None
    num_groups: Size = 1
    norm_groups: Size | None = None
    d_conv: Repeats = 4
    expand: Factor = 2
    ssm_channels: Size | None = None
    norm: bool = True
    norm_before_gate: bool = False
    norm_eps: Epsilon = 1e-5
    skip_per_channel: bool = False
    bias: bool = False
    conv_bias: bool = True
    dt_least: AtLeastZero = 0.0
    dt_most: Positive | None = None
    decay_min: Positive = 1.0
    decay_max: Positive = 16.0
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1
    dt_floor: Positive = 1e-4
    num_layers: Size | None = None
    chunk_size: Size | None = None
    implementation: str | None = None

    @property
    def width(self) -> int:
        """Inner width E."""
        return inner_width(self)

    @nn.nowrap
    def layout(self) -> tuple[int, int]:
        """Return the heads, and channels per head."""
        channels = inner = self.width
        if self.ssm_channels is not None:
            channels = self.ssm_channels
            expect(channels <= inner, "ssm_channels", channels, f"at most expand * d_model = {inner}")
        if self.head_dim is None:
            heads = default_heads(channels)
        else:
            expect_divisible("channels in heads", channels, "head_dim", self.head_dim)
            heads = channels // self.head_dim
        expect_divisible("heads", heads, "num_groups", self.num_groups)
        return heads, channels // heads

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        heads, head_dim = self.layout()
        channels, groups, states = heads * head_dim, self.num_groups, self.d_state
        in_std, out_std = self.init_std, self.out_std
        if self.num_layers is not None:
            in_std = (3 * self.d_model) ** -0.5
            out_std = (3 * self.width * self.num_layers) ** -0.5
        lead = x.shape[:2]

        options: dict[str, Any] = {"init_std": in_std, "bias": self.bias}
        inner = self.linear((2, channels), "embed", None, "mlp", **options, name="in_proj")(x)
        maps = self.linear((2, groups, states), "embed", None, None, None, **options, name="maps")(x)
        steps = self.linear(heads, "embed", "heads", **options, name="step")(x)

        z, u = inner[..., 0, :], inner[..., 1, :]
        u = jnp.concatenate([u, maps.reshape(*lead, -1)], axis=-1)
        taps, bias = self.conv_params(self.d_conv, u.shape[-1], "mlp", self.conv_bias)
        u, conv = context.run(ops.short_conv, u, taps, bias, initial_state=state and state.conv)
        u, B, C = jnp.split(jax.nn.silu(u), [channels, channels + groups * states], axis=-1)
        u = u.reshape(*lead, heads, head_dim).astype(self.wide)
        B, C = (a.reshape(*lead, groups, states) for a in (B, C))

        dt, A = self._steps_and_decay(steps)
        shape, axes = (
            ((heads, head_dim), ("heads", None)) if self.skip_per_channel else ((heads,), ("heads",))
        )
        D = self.param("D", ones(*axes), shape).reshape(heads, -1)
        how: dict[str, Any] = {"chunk_size": self.chunk_size, "implementation": self.implementation}
        how |= {"scale": 1.0, "initial_state": state and state.ssm}
        y, ssm = context.run(ops.linear_recurrence, C, B, u * dt[..., None], dt * A, **how)
        y = (y + D * u).reshape(*lead, channels).astype(self.dtype)
        y = self._gated(y, jax.nn.silu(z))
        if beside := self.width - channels:
            rest = self.linear((2, beside), "embed", None, "mlp", **options, name="mlp")(x)
            y = jnp.concatenate([jax.nn.silu(rest[..., 0, :]) * rest[..., 1, :], y], axis=-1)
        y = self.to_output("mlp", init_std=out_std, bias=self.bias, name="out")(y)
        return y, MambaState(conv, ssm)

    @nn.nowrap
    def _steps_and_decay(
        self, steps: Float[Array, "B N H"]
    ) -> tuple[Float[Array, "B N H"], Float[Array, " H"]]:
        """Return dt and A."""
        heads, _ = self.layout()
        bias = log_uniform_steps(self.dt_min, self.dt_max, self.dt_floor)
        dt = jax.nn.softplus(steps.astype(self.wide) + self.param("dt_bias", named(bias, "heads"), (heads,)))
        decays = log_of_uniform(self.decay_min, self.decay_max)
        dt = jnp.clip(dt, self.dt_least or None, self.dt_most)
        A_log = self.param("A_log", named(decays, "heads"), (heads,))
        return dt, -jnp.exp(A_log.astype(self.wide))

    @nn.nowrap
    def _gated(self, y: Float[Array, "B N E"], gate: Float[Array, "B N E"]) -> Float[Array, "B N E"]:
        """Apply norm and gate to the heads."""
        if not self.norm:
            return y * gate
        groups = self.num_groups if self.norm_groups is None else self.norm_groups
        expect_divisible("channels in heads", y.shape[-1], "norm_groups", groups)
        scale = self.param("norm_scale", ones(None, "mlp"), (groups, y.shape[-1] // groups))
        y = y if self.norm_before_gate else y * gate
        normed = ops.rms_norm(y.reshape(*y.shape[:2], *scale.shape), scale, self.norm_eps).reshape(y.shape)
        return normed * gate if self.norm_before_gate else normed

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, head_dim = self.layout()
        inputs = heads * head_dim + 2 * self.num_groups * self.d_state
        return MambaState(
            conv=ops.init_short_conv_state(batch_size, inputs, self.d_conv, dtype),
            ssm=ops.init_linear_recurrence_state(batch_size, heads, self.d_state, head_dim, self.wide),
        )

    def state_size(self, length: int) -> int:
        """Return 2 d d_state for expand = 2 (Zoology's code), without the convolution's inputs."""
        heads, head_dim = self.layout()
        return heads * head_dim * self.d_state
