"""An MLP as a layer of its own: y = act(x W_in) W_out (Nemotron-H, section 2.1).

It treats each token alone: the only mixer whose outputs do not depend on other tokens. Schedule it in a model
with mlp = "none", whose other layers then have no MLP either.
"""

from typing import Any

from flax import linen as nn

from based_jax.fields import Size
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.ops.core.products import ACTIVATIONS
from based_jax.ops.core.stream import init_stream
from based_jax.typing import Array, Float, State
from based_jax.validate import expect_choice


@register("mlp")
class MLPLayer(Mixer):
    """MLP without a mixer.

    Attributes:
        hidden: hidden width; default 4 d_model.
        activation: silu, gelu (exact), gelu_tanh, sigmoid, relu or squared_relu.
        bias: add biases in both maps.
    """

    hidden: Size | None = None
    activation: str = "gelu"
    bias: bool = False

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        expect_choice("activation", self.activation, tuple(ACTIVATIONS))
        hidden = 4 * self.d_model if self.hidden is None else self.hidden
        inner = self.linear(hidden, "embed", "mlp", bias=self.bias, name="in_proj")(x)
        y = self.to_output("mlp", bias=self.bias, name="out")(ACTIVATIONS[self.activation](inner))
        return y, context.stream

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        return init_stream(batch_size)

    def state_size(self, length: int) -> int:
        """Return 0: no token depends on another one."""
        return 0
