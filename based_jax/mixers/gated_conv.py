"""Gated short convolution, the BaseConv of Based's language models (Based, section 4.2 and code).

    u1, u2 = split(x W_in + b_in);   y = (silu(conv(u1)) * u2) W_out + b_out

conv is depthwise, causal and `kernel_size` tokens long. This follows the code, not the paper: each branch is
expand * d_model / 2 wide, the bias comes before the convolution, and the gate u2 stays linear. In LFM2
(technical report, section 2; `gate_input`) a third branch gates the convolution's inputs, in place of silu:

    y = (conv(u1 * u3) * u2) W_out + b_out
"""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Repeats
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.ops.core.products import fused_gate, plus_bias
from based_jax.ops.short_conv import projected_conv_step
from based_jax.typing import Array, Float, State
from based_jax.validate import expect_divisible


@register("gated_conv")
class GatedConv(Mixer):
    """Gated short convolution.

    Attributes:
        expand: width of the first two branches together over d_model.
        kernel_size: taps of the convolution.
        bias: add biases in both projections.
        conv_bias: add a bias in the convolution (the released models have none).
        gate_input: gate the convolution's inputs by a third branch, in place of SiLU after it, as in LFM2.
    """

    expand: Repeats = 4
    kernel_size: Repeats = 3
    bias: bool = True
    conv_bias: bool = False
    gate_input: bool = False

    projects_input: ClassVar[bool] = True

    @property
    def channels(self) -> int:
        """Width of each branch."""
        expect_divisible("expand * d_model", self.expand * self.d_model, "branches", 2)
        return self.expand * self.d_model // 2

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Any, State]:
        shape = 3 if self.gate_input else 2, self.channels
        project = self.linear(shape, "embed", None, "mlp", bias=self.bias, name="in_proj")
        taps, bias = self.conv_params(self.kernel_size, self.channels, "mlp", self.conv_bias)
        out = functools.partial(self.to_output("mlp", bias=self.bias, name="out"), apart=context.apart)
        if self.gate_input:
            first, gate, second = jnp.moveaxis(project(x), -2, 0)
            conv, state = context.run(ops.short_conv, first * second, taps, bias, initial_state=state)
            return out(conv * gate), state
        if context.is_plain_step:
            step = functools.partial(projected_conv_step, kernel=taps, state=state, bias=bias)
            y, state = project(x, into=step)
            return out(y), state
        inner, in_bias = project(x, apart=True)
        if context.is_whole and bias is None and (y := fused_gate(inner, taps, in_bias)) is not None:
            return out(y), None
        inner = inner if in_bias is None else plus_bias(inner, in_bias)
        conv, state = context.run(ops.short_conv, inner[..., 0, :], taps, bias, initial_state=state)
        return out(jax.nn.silu(conv) * inner[..., 1, :]), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return ops.init_short_conv_state(batch_size, self.channels, self.kernel_size, dtype)

    def state_size(self, length: int) -> int:
        """Return channels times taps, as the papers count it; one tap less is stored."""
        return self.channels * self.kernel_size
