"""Mamba, the selective state space model (Mamba, section 3; Based, Table 9; Zoology's code).

    u, z = split(x W_in);   u = silu(conv(u));   dt', B, C = split(u W_x);   dt = softplus(dt' W_dt + b_dt)
    h_t = exp(dt_t A) * h_{t-1} + dt_t u_t B_t^T,     y_t = h_t C_t + D * u_t,     A = -exp(A_log)
    out = (y * silu(z)) W_out

conv is depthwise, causal, `d_conv` tokens long and biased. E = expand * d_model channels, each with d_state
states. A step size dt near 0 keeps the state and ignores the token; a large dt does the opposite. `map_norm`
norms dt', B and C.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Factor, Positive, Repeats, Size, States
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.mixers.initializers import log_uniform_steps, named, ones, uniform
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice


class MambaState(NamedTuple):
    """States of the convolution and of the state space model, in Mamba and Mamba-2."""

    conv: ops.ShortConvState
    ssm: ops.DiagonalScanState | ops.LinearRecurrenceState


def inner_width(mixer: Any) -> int:
    """Return the width E of a Mamba or Mamba-2."""
    channels = int(mixer.expand * mixer.d_model)
    expect(channels >= 1, "expand", mixer.expand, "at least 1 channel")
    return channels


@register("mamba")
class Mamba(Mixer):
    """Mamba: a short convolution, a selective scan, and a gate.

    Attributes:
        d_state: states per channel.
        d_conv: taps of the convolution.
        expand: channels over d_model; a fraction of a channel is dropped.
        dt_rank: rank of the map to the step sizes; default d_model / 16, rounded up.
        dt_min, dt_max: range of the initial step sizes, drawn log-uniformly.
        dt_floor: lower bound of the initial step sizes.
        dt_init, dt_scale: "random" draws the map to the step sizes from U(-b, b), "constant" sets it to b,
            b = dt_scale / sqrt(dt_rank).
        map_norm: RMS norms of dt', B and C: "learned" with learned scales (Jamba, section 6.4), "plain"
            without (Falcon Mamba); None for no norms.
        map_norm_eps: epsilon of these norms.
        bias, conv_bias: add biases in the outer projections, and in the convolution.
        num_layers: None initialises the projections like the other mixers. A number initialises them as the
            papers' Mamba models of this many layers: torch's default variance 1 / (3 fan_in), regardless of
            `init_std` and `out_init_std`, and the output projection divided by sqrt(num_layers).
        implementation: passed to `ops.selective_scan`.
    """

    d_state: States = 16
    d_conv: Repeats = 4
    expand: Factor = 2
    dt_rank: Size | None = None
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1
    dt_floor: Positive = 1e-4
    dt_init: str = "random"
    dt_scale: Positive = 1.0
    map_norm: str | None = None
    map_norm_eps: Epsilon = 1e-6
    bias: bool = False
    conv_bias: bool = True
    num_layers: Size | None = None
    implementation: str | None = None

    @property
    def channels(self) -> int:
        """Inner width E."""
        return inner_width(self)

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        channels, states = self.channels, self.d_state
        rank = -(-self.d_model // 16) if self.dt_rank is None else self.dt_rank
        in_std, map_std, out_std = self.init_std, self.init_std, self.out_std
        if self.num_layers is not None:
            in_std, map_std = ((3 * fan_in) ** -0.5 for fan_in in (self.d_model, channels))
            out_std = map_std / self.num_layers**0.5

        options: dict[str, Any] = {"init_std": in_std, "bias": self.bias}
        inner = self.linear((2, channels), "embed", None, "mlp", **options, name="in_proj")(x)
        u, z = inner[..., 0, :], inner[..., 1, :]
        taps, bias = self.conv_params(self.d_conv, channels, "mlp", self.conv_bias)
        if context.is_plain_step:
            u, conv = ops.short_conv_step(inner[:, 0], taps, state.conv, bias)
            u = u[:, None]
        else:
            u, conv = context.run(ops.short_conv, u, taps, bias, initial_state=state and state.conv)
            u = jax.nn.silu(u)

        maps = self.linear(rank + 2 * states, "mlp", None, init_std=map_std, name="x_proj")(u)
        low, B, C = self._normed(*jnp.split(maps, [rank, rank + states], axis=-1))
        steps = log_uniform_steps(self.dt_min, self.dt_max, self.dt_floor)
        expect_choice("dt_init", self.dt_init, ("random", "constant"))
        bound = self.dt_scale * rank**-0.5
        init = uniform(bound) if self.dt_init == "random" else nn.initializers.constant(bound)
        dt_kernel = self.param("dt_kernel", named(init, None, "mlp"), (rank, channels))
        dt_bias = self.param("dt_bias", named(steps, "mlp"), (channels,))
        dt = jax.nn.softplus((low @ dt_kernel.astype(self.dtype)).astype(self.wide) + dt_bias)
        A_log = self.param("A_log", named(_init_A_log, "mlp", None), (channels, states))
        A = -jnp.exp(A_log.astype(self.wide))
        D = self.param("D", ones("mlp"), (channels,))
        options = {"initial_state": state and state.ssm, "implementation": self.implementation}
        y, ssm = context.run(ops.selective_scan, u, dt, A, B, C, D, **options)
        y = self.to_output("mlp", init_std=out_std, bias=self.bias, name="out")(y * jax.nn.silu(z))
        return y, MambaState(conv, ssm)

    @nn.nowrap
    def _normed(self, *maps: Float[Array, "B N _"]) -> tuple[Array, ...]:
        """Return dt', B and C with their norms, if there are any."""
        expect_choice("map_norm", self.map_norm, (None, "learned", "plain"))
        if self.map_norm is None:
            return maps
        found: list[Array] = []
        for name, x in zip(("dt", "B", "C"), maps, strict=True):
            shape, is_learned = x.shape[-1:], self.map_norm == "learned"
            scale = self.param(f"{name}_norm", ones(None), shape) if is_learned else jnp.ones(shape)
            found.append(ops.rms_norm(x, scale, self.map_norm_eps))
        return tuple(found)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return MambaState(
            conv=ops.init_short_conv_state(batch_size, self.channels, self.d_conv, dtype),
            ssm=ops.init_diagonal_scan_state(batch_size, (self.channels, self.d_state), self.wide),
        )

    def state_size(self, length: int) -> int:
        """Return 2 d d_state for expand = 2 (Based, appendix E.2), without the convolution's inputs."""
        return self.channels * self.d_state


def _init_A_log(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return A = -1, -2, ..., -S for every channel."""
    return jnp.broadcast_to(jnp.log(jnp.arange(1, shape[-1] + 1, dtype=dtype)), shape)
