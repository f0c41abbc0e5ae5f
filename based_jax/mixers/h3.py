"""H3: a shift and a diagonal state space between three projections (H3, section 3; Zoology's code).

    k <- shift(k) + D1 k;   shift(k)_t = sum_{l < d_state} c_l k_{t-l},   c_l = sum_n B_n C_{n+l}   (channel)
    y_t = (S4D(k v^T)_t + D2 k_t v_t^T)^T q_t                                                        (head)
    out = concat_heads(y) W_o + b_o

A head has p channels, so k v^T is p x p; one S4D of d_state / 2 complex modes convolves all its entries:
A_n = -exp(r_n) + i w_n, discretised by the bilinear rule with step dt. Instead Zoology's code can have Mega's
moving averages (Ma et al. 2022, section 3.2):

    K_l = sum_n w_n q_n^l,   w = gamma p beta / sqrt(S),   q = 1 - p sigmoid(alpha),   p = sigmoid(delta)
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Length, Positive, Size, States
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.mixers.initializers import (
    Initializer,
    complex_ones,
    frequencies,
    log_uniform,
    named,
    normal,
    uniform,
)
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice, expect_divisible

KERNELS = ("diagonal", "ema")

Modes = tuple[Float[Array, "H S 2"], Float[Array, "H S 2"]]
"""a logarithm and a weight per mode, each a pair of a real and an imaginary part, see `ops.diagonal_ssm`"""


class H3State(NamedTuple):
    """States of the two state space models; of fixed size."""

    shift: ops.LongConvState
    """the last d_state keys"""
    ssm: ops.DiagonalSSMState | ops.LongConvState
    """the last inputs if the kernel is truncated"""


@register("h3")
class H3(Mixer):
    """H3 with a shift and a diagonal state space.

    Attributes:
        d_state: taps of the shift, and twice the modes of the diagonal state space.
        head_dim: channels per head p.
        kernel: the second state space: "diagonal" (S4D), or "ema" (d_state moving averages).
        l_max: truncate the kernels to this many taps, as Zoology's parallel form does; the state then holds
            as many inputs. None for no truncation.
        kernel_l_max: truncate only the second state space's kernel, further than `l_max` does.
        dt_min, dt_max: range of the initial steps, drawn log-uniformly.
        implementation: passed to `ops.diagonal_ssm` and `ops.long_conv`.
    """

    d_state: States = 64
    head_dim: Size = 1
    kernel: str = "diagonal"
    l_max: Length | None = None
    kernel_l_max: Length | None = None
    dt_min: Positive = 1e-3
    dt_max: Positive = 1e-1
    implementation: str | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        expect_divisible("d_model", self.d_model, "head_dim", self.head_dim)
        expect_choice("kernel", self.kernel, KERNELS)
        least = 2 if self.kernel == "diagonal" else 1
        expect(self.d_state >= least, "d_state", self.d_state, f"at least {least}")
        return self.d_model // self.head_dim

    @property
    def taps(self) -> int | None:
        """Length at which the second kernel ends; None if it does not."""
        return min(filter(None, (self.l_max, self.kernel_l_max)), default=None)

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        batch, length, width = x.shape
        heads, head_dim = self.heads, self.head_dim
        q, k, v = (self.to_heads(heads, head_dim, bias=True, name=name)(x) for name in "qkv")
        options: dict[str, Any] = {"implementation": self.implementation}
        taps = self._shift_taps()[: self.l_max]
        skip = self.param("shift_skip", named(normal(1.0), "embed"), (self.d_model,))
        k = k.reshape(batch, length, width)
        k, shift = context.run(
            ops.long_conv, k, taps, skip=skip, initial_state=state and state.shift, **options
        )
        kv = k.reshape(v.shape)[..., None] * v[..., None, :]
        skip = self.param("skip", named(normal(1.0), "heads"), (heads,))
        options |= {"initial_state": state and state.ssm}
        y, ssm = self._second(kv.reshape(batch, length, heads, head_dim**2), skip, context, options)
        # The authors' order of channels: heads last.
        y = jnp.einsum("bnha,bnhac->bnch", q, y.reshape(kv.shape))
        return self.to_output("head_dim", "heads", bias=True, name="out")(y), H3State(shift, ssm)

    @nn.nowrap
    def _second(
        self, kv: Float[Array, "B N H V"], skip: Float[Array, " H"], context: Context, options: dict[str, Any]
    ) -> tuple[Float[Array, "B N H V"], State]:
        """Apply the second state space to the entries of k v^T."""
        modes = self._averages() if self.kernel == "ema" else self._s4d()
        if self.taps is None:
            return context.run(ops.diagonal_ssm, kv, *modes, skip=skip, **options)
        taps = ops.diagonal_ssm_kernel(*modes, self.taps)
        taps, skip = (jnp.repeat(a, kv.shape[-1], axis=-1) for a in (taps, skip))
        flat = kv.reshape(*kv.shape[:2], -1)
        y, state = context.run(ops.long_conv, flat, taps, skip=skip, **options)
        return y.reshape(kv.shape), state

    @nn.nowrap
    def _shift_taps(self) -> Float[Array, "S D"]:
        """Return the taps of the shift."""
        shape = (self.d_model, self.d_state)

        def present(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            return jnp.zeros(shape, dtype).at[:, 0].set(1)

        b = self.param("shift_b", named(present, "embed", None), shape).astype(self.wide)
        c = self.param("shift_c", named(uniform(self.d_state**-0.5), "embed", None), shape).astype(self.wide)
        # The correlation of c with b is a convolution with c reversed.
        return ops.long_conv(c.T[None, ::-1], b.T)[0, ::-1]

    @nn.nowrap
    def _s4d(self) -> Modes:
        shape = self.heads, self.d_state // 2

        def param(name: str, init: Initializer, *sizes: int) -> Array:
            axes = ("heads", *[None] * (len(sizes) - 1))
            return self.param(name, named(init, *axes), sizes).astype(self.wide)

        dt = jnp.exp(param("log_dt", log_uniform(self.dt_min, self.dt_max), self.heads))
        rate = param("log_rate", nn.initializers.constant(math.log(0.5)), *shape)
        frequency = param("frequency", frequencies, *shape)
        b, c = param("b", complex_ones, *shape, 2), param("c", normal(math.sqrt(0.5)), *shape, 2)
        return ops.discretize_bilinear(jnp.stack([-jnp.exp(rate), frequency], axis=-1), b, c, dt)

    @nn.nowrap
    def _averages(self) -> Modes:
        """Return real modes; `ops.diagonal_ssm` takes half the weight."""

        def param(name: str, init: Initializer) -> Array:
            shape = self.heads, self.d_state
            return self.param(name, named(init, "heads", None), shape).astype(self.wide)

        p = jax.nn.sigmoid(param("ema_step", normal(0.2)))
        log_a = jnp.log1p(-p * jax.nn.sigmoid(param("ema_decay", normal(0.2))))
        weight = p * param("ema_in", _alternating) * param("ema_out", normal(1.0)) * self.d_state**-0.5 / 2
        return jnp.stack([log_a, jnp.zeros_like(log_a)], -1), jnp.stack([weight, jnp.zeros_like(weight)], -1)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        entries = self.head_dim**2
        shifted = min(self.d_state, self.l_max or self.d_state)
        if self.taps is None:
            modes = self.d_state if self.kernel == "ema" else self.d_state // 2
            ssm = ops.init_diagonal_ssm_state(batch_size, self.heads, entries, modes, self.wide)
        else:
            ssm = ops.init_long_conv_state(batch_size, self.taps, self.heads * entries, dtype)
        return H3State(ops.init_long_conv_state(batch_size, shifted, self.d_model, dtype), ssm)

    def state_size(self, length: int) -> int:
        """Return d d_state (Based, appendix E.2), counting neither the shift nor a head's p x p entries."""
        return self.d_model * self.d_state


def _alternating(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return 1, -1, 1, ... plus a little noise."""
    signs = (-1.0) ** jnp.arange(shape[1], dtype=dtype)
    return signs + 0.02 * jax.random.normal(key, shape, dtype)
