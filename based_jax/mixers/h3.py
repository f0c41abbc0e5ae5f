"""H3: a shift and a diagonal state space between three projections (H3, section 3; Zoology's code).

    k <- shift(k) + D1 k;   shift(k)_t = sum_{l < d_state} c_l k_{t-l},   c_l = sum_n B_n C_{n+l}   (channel)
    y_t = (S4D(k v^T)_t + D2 k_t v_t^T)^T q_t                                                        (head)
    out = concat_heads(y) W_o + b_o

A head has p channels, so k v^T is p x p; one S4D of d_state / 2 complex modes convolves all its entries:
A_n = -exp(r_n) + i w_n, discretised by the bilinear rule with step dt. `state_kernels` has the other kernels
of Zoology's code.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Length, Positive, Size, States
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.mixers.initializers import named, normal
from based_jax.mixers.state_kernels import moving_averages, s4d, shift_taps
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice, expect_divisible

KERNELS = ("diagonal", "ema", "shift")


class H3State(NamedTuple):
    """States of the two state space models; of fixed size."""

    shift: ops.LongConvState
    """the last d_state keys"""
    ssm: ops.DiagonalSSMState | ops.LongConvState
    """the last inputs if the kernel is finite: a shift, or truncated"""


@register("h3")
class H3(Mixer):
    """H3 with a shift and a diagonal state space.

    Attributes:
        d_state: taps of the shift, and twice the modes of the diagonal state space.
        head_dim: channels per head p.
        kernel: the second state space: "diagonal" (S4D), "ema" (Mega's d_state moving averages, Ma et al.
            2022, section 3.2) or "shift" (the same kind as the first).
        l_max: truncate the kernels to this many taps, as Zoology's parallel form does; the state then holds
            as many inputs. None for no truncation.
        kernel_l_max: truncate only the second state space's kernel, further than `l_max` does.
        discretization: rule of the diagonal state space, "bilinear" or "zoh" (zero-order hold).
        rate_form: map from r to the rates: "exp", "none", "relu", "sigmoid" or "softplus".
        real: leave out the frequencies w.
        bandlimit: drop modes with 2 dt |w| / (2 pi) above this; None keeps all.
        num_ssms: number of pairs A and B, assigned to the heads in turn; None for one per head.
        tied_steps: one step of "ema" per channel, not per average.
        dt_min, dt_max: range of the initial steps, drawn log-uniformly.
        implementation: passed to `ops.diagonal_ssm` and `ops.long_conv`.
    """

    d_state: States = 64
    head_dim: Size = 1
    kernel: str = "diagonal"
    l_max: Length | None = None
    kernel_l_max: Length | None = None
    discretization: str = "bilinear"
    rate_form: str = "exp"
    real: bool = False
    bandlimit: Positive | None = None
    num_ssms: Size | None = None
    tied_steps: bool = False
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
        taps = shift_taps(self, self.d_model, self.d_state, "shift_", "embed")[: self.l_max]
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
        taps = self._ending_kernel()
        if taps is None:
            return context.run(ops.diagonal_ssm, kv, *self._modes(), skip=skip, **options)
        taps, skip = (jnp.repeat(a, kv.shape[-1], axis=-1) for a in (taps, skip))
        flat = kv.reshape(*kv.shape[:2], -1)
        y, state = context.run(ops.long_conv, flat, taps, skip=skip, **options)
        return y.reshape(kv.shape), state

    @nn.nowrap
    def _ending_kernel(self) -> Float[Array, "T H"] | None:
        """Return the kernel of the second state space if it is finite, else None."""
        if self.kernel == "shift":
            return shift_taps(self, self.heads, self.d_state, "", "heads")[: self.taps]
        if self.taps is None:
            return None
        return ops.diagonal_ssm_kernel(*self._modes(), self.taps)

    @nn.nowrap
    def _modes(self) -> tuple[Float[Array, "H S 2"], Float[Array, "H S 2"]]:
        if self.kernel == "ema":
            return moving_averages(self, self.heads, self.d_state, self.tied_steps)
        return s4d(self, self.heads, self.d_state // 2)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        entries = self.head_dim**2
        shifted = min(self.d_state, self.l_max or self.d_state)
        kept = min(shifted, self.taps or shifted) if self.kernel == "shift" else self.taps
        if kept is None:
            modes = self.d_state if self.kernel == "ema" else self.d_state // 2
            ssm = ops.init_diagonal_ssm_state(batch_size, self.heads, entries, modes, self.wide)
        else:
            ssm = ops.init_long_conv_state(batch_size, kept, self.heads * entries, dtype)
        return H3State(ops.init_long_conv_state(batch_size, shifted, self.d_model, dtype), ssm)

    def state_size(self, length: int) -> int:
        """Return d d_state (Based, appendix E.2), counting neither the shift nor a head's p x p entries."""
        return self.d_model * self.d_state
