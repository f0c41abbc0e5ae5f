"""Liquid S4 with a diagonal state (Hasani et al. 2022, section 3; the state of S4D, Gu et al. 2022).

    h_t = (Abar + Bbar u_t) * h_{t-1} + Bbar u_t,     y_t = 2 Re(C . h_t) + D u_t,     out = gelu(y) W_out + b
    Abar = (1 + dt A / 2) / (1 - dt A / 2),     Bbar = dt B / (1 - dt A / 2),     A = -exp(A_log) + i A_imag

Each channel u has d_state / 2 complex states (and their conjugates, hence 2 Re) and its own step size dt.

From the paper: the liquid term Bbar u_t * h_{t-1}, which makes the transition depend on the input, the
bilinear discretisation, and the layer around it. The paper evaluates a truncation of this recurrence as a sum
of convolutions over products of up to P inputs (its kernels KB, and PB, which omits Abar). Here the
recurrence itself is computed, with all orders at once and without those kernels. A is diagonal as in S4D,
not S4's diagonal plus low rank.

|Abar + Bbar u_t| may exceed 1: the state grows as long as large inputs keep the same sign, without bound.
Nothing is clamped, as in the paper; after a norm, and with dt <= 0.1, inputs of both signs keep it small.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.tree_util import Partial

from based_jax import ops
from based_jax.fields import Positive, States
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.mixers.initializers import Initializer, complex_ones, frequencies, log_uniform, named, normal
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


@register("liquid_s4")
class LiquidS4(Mixer):
    """Liquid S4: a diagonal state space model whose transition depends on the input.

    Attributes:
        d_state: real states per channel, an even number: d_state / 2 complex ones.
        dt_min, dt_max: range of the initial step sizes, drawn log-uniformly.
        implementation: passed to `ops.diagonal_scan`.
    """

    d_state: States = 64
    dt_min: Positive = 0.001
    dt_max: Positive = 0.1
    implementation: str | None = None

    @property
    def modes(self) -> int:
        """Complex states per channel."""
        expect(self.d_state % 2 == 0, "d_state", self.d_state, "an even number >= 2")
        return self.d_state // 2

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        def param(name: str, initializer: Initializer, *sizes: int) -> Array:
            axes = ("embed", *[None] * len(sizes))
            return self.param(name, named(initializer, *axes), (self.d_model, *sizes)).astype(self.wide)

        decay = param("A_log", nn.initializers.constant(math.log(0.5)), self.modes)
        turn = param("A_imag", frequencies, self.modes)
        B = param("B", complex_ones, self.modes, 2)
        C = param("C", normal(0.5**0.5), self.modes, 2)
        D = param("D", normal(1.0))
        dt = jnp.exp(param("dt_log", log_uniform(self.dt_min, self.dt_max)))[:, None]
        half = lax.complex(-jnp.exp(decay), turn) * (dt / 2)
        transition = (1 + half) / (1 - half)
        entry = lax.complex(B[..., 0], B[..., 1]) * dt / (1 - half)
        terms, readout = Partial(_terms, transition, entry), Partial(_readout, C, D)
        options = {"initial_state": state, "implementation": self.implementation}
        y, state = context.run(ops.diagonal_scan, x, terms, readout, **options)
        y = jax.nn.gelu(y, approximate=False).astype(self.dtype)
        out = self.linear(self.d_model, "embed", "mlp", bias=True, init_std=self.out_std, name="out")
        return out(y), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        complex_dtype = jnp.promote_types(self.wide, jnp.complex64)
        return ops.init_diagonal_scan_state(batch_size, (self.d_model, self.modes), complex_dtype)

    def state_size(self, length: int) -> int:
        """Return d d_state, as for H3."""
        return self.d_model * self.d_state


def _terms(transition: Array, entry: Array, u: Array) -> tuple[Array, Array]:
    b = entry * u.astype(entry.real.dtype)[..., None]
    return transition + b, b


def _readout(C: Array, D: Array, h: Array, u: Array) -> Array:
    return 2 * (h.real * C[..., 0] - h.imag * C[..., 1]).sum(-1) + D * u.astype(D.dtype)
