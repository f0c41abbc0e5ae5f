"""Mamba, the selective state space model (Mamba, section 3; Based, Table 9; spec of Zoology 3.12).

    u, z = split(x W_in);   u = silu(conv(u));   dt', B, C = split(u W_x);   dt = softplus(dt' W_dt + b_dt)
    h_t = exp(dt_t A) * h_{t-1} + dt_t u_t B_t^T,     y_t = h_t C_t + D * u_t,     A = -exp(A_log)
    out = (y * silu(z)) W_out

conv is depthwise, causal, `d_conv` tokens long and biased. E = expand * d_model channels, each with d_state
states. A step size dt near 0 keeps the state and ignores the token, a large one does the opposite.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Positive, Repeats, Size, States
from based_jax.mixers.contract import Card, Mixer, Projection, log_uniform_steps, named, uniform
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.stream import Stream
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MambaState:
    """What the convolution and the state space model remember."""

    conv: ops.ShortConvState
    ssm: ops.DiagonalScanState

    @property
    def stream(self) -> Stream:
        """How far each row has come."""
        return self.ssm.stream


class Mamba(Mixer):
    """Mamba: a short convolution, a selective scan, and a gate.

    Attributes:
        d_state: states per channel.
        d_conv: taps of the convolution.
        expand: channels over d_model.
        dt_rank: rank of the map to the step sizes; default d_model / 16, rounded up.
        dt_min, dt_max: at initialisation step sizes are log-uniform between these, and at least `dt_floor`.
        dt_floor: the least step size at initialisation.
        num_layers: None initialises the projections as all mixers here do. The papers' Mamba models, of this
            many layers, keep torch's default for them, a variance of 1 / (3 fan_in) whatever `init_std` and
            `out_init_std` say, and divide the output projection by sqrt(num_layers).
        implementation: of `ops.selective_scan`.
    """

    card: ClassVar[Card] = Card(
        equation="h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t, y_t = C_t h_t + D u_t",
        training="N E S",
        state="2 D S",
        decoding="E S",
        source="Gu and Dao 2023; Based, Table 9",
        parity=(
            "zoology/mamba",
            "checkpoints/mamba-tiny",
        ),
    )

    d_state: States = 16
    d_conv: Repeats = 4
    expand: Repeats = 2
    dt_rank: Size | None = None
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1
    dt_floor: Positive = 1e-4
    num_layers: Size | None = None
    implementation: str | None = None

    @property
    def channels(self) -> int:
        """Width E inside."""
        for name in ("d_state", "d_conv", "expand"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        return self.expand * self.d_model

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        x = self.check_input(x)
        channels, states = self.channels, self.d_state
        rank = -(-self.d_model // 16) if self.dt_rank is None else self.dt_rank
        expect(rank >= 1, "dt_rank", rank, "at least 1")
        in_std = map_std = self.init_std
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        if self.num_layers is not None:
            expect(self.num_layers >= 1, "num_layers", self.num_layers, "at least 1")
            in_std, map_std = ((3 * fan_in) ** -0.5 for fan_in in (self.d_model, channels))
            out_std = map_std / self.num_layers**0.5
        context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "return_state": True}

        inner = Projection(
            (2, channels), ("embed", None, "mlp"), dtype=self.dtype, init_std=in_std, name="in_proj"
        )(x)
        u, z = inner[..., 0, :], inner[..., 1, :]
        taps = named(uniform(self.d_conv**-0.5), None, "mlp")
        u, conv_state = ops.short_conv(
            u, self.param("conv_kernel", taps, (self.d_conv, channels)),
            self.param("conv_bias", named(uniform(self.d_conv**-0.5), "mlp"), (channels,)),
            initial_state=None if state is None else state.conv, **context,
        )  # fmt: skip
        u = jax.nn.silu(u)

        maps = Projection(
            (rank + 2 * states,), ("mlp", None), dtype=self.dtype, init_std=map_std, name="x_proj"
        )(u)
        low, B, C = jnp.split(maps, [rank, rank + states], axis=-1)
        steps = log_uniform_steps(self.dt_min, self.dt_max, self.dt_floor)
        dt_kernel = self.param("dt_kernel", named(uniform(rank**-0.5), None, "mlp"), (rank, channels))
        dt_bias = self.param("dt_bias", named(steps, "mlp"), (channels,))
        wide = accumulation_dtype(x)
        dt = jax.nn.softplus((low @ dt_kernel.astype(self.dtype)).astype(wide) + dt_bias)
        A_log = self.param("A_log", named(_init_A_log, "mlp", None), (channels, states))
        D = self.param("D", named(nn.initializers.ones_init(), "mlp"), (channels,))
        y, ssm_state = ops.selective_scan(
            u, dt, -jnp.exp(A_log), B, C, D, implementation=self.implementation,
            initial_state=None if state is None else state.ssm, **context,
        )  # fmt: skip

        y = Projection((self.d_model,), ("mlp", "embed"), dtype=self.dtype, init_std=out_std, name="out")(
            y * jax.nn.silu(z)
        )
        return y, None if state is None else MambaState(conv_state, ssm_state)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        wide = jnp.promote_types(self.dtype, jnp.float32)
        dtype = self.dtype if dtype is None else dtype
        return MambaState(
            conv=ops.init_short_conv_state(batch_size, self.channels, self.d_conv, dtype),
            ssm=ops.init_diagonal_scan_state(batch_size, (self.channels, self.d_state), wide),
        )

    def state_size(self, length: int) -> int:
        """2 d d_state for expand = 2 (Based, appendix E.2); the convolution's inputs are not counted."""
        return self.channels * self.d_state


def _init_A_log(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """A = -1, -2, ..., -S for every channel."""
    return jnp.broadcast_to(jnp.log(jnp.arange(1, shape[-1] + 1, dtype=dtype)), shape)
