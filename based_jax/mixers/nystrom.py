"""NystromFormer: softmax attention through a few landmarks (Xiong et al. 2021; Zoology's code).

    causal:      y_i = softmax over the landmarks of the chunks before i's and the tokens of i's chunk
    not causal:  y = softmax(q k~^T) pinv(softmax(q~ k~^T)) softmax(q~ k^T) v,  masked as in Zoology's code

A landmark is the mean of a chunk of the sequence; `ops.nystrom` has both forms. Zoology's form is not causal:
its chunks include later tokens. The causal form, the default, is ours.
"""

from typing import Any

import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Length, Repeats, Share, Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.initializers import named, uniform
from based_jax.mixers.softmax_heads import SoftmaxHeads, expect_max_length
from based_jax.ops.nystrom import PINVERSES
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice


@register("nystrom")
class Nystrom(SoftmaxHeads):
    """Attention through landmarks, causal or as in Zoology's code.

    Attributes:
        num_landmarks: m, landmarks of a row.
        causal: False is Zoology's form, which takes whole rows only: no state, segments or padding.
        l_max: tokens of the longest row; the causal form's chunks are l_max / m tokens long, rounded up. A
            longer row has more landmarks.
        iterations: iterations of the pseudo-inverse in Zoology's form.
        pinverse: algorithm of that pseudo-inverse, see `ops.nystrom_attention`.
        conv_kernel_size: taps (an odd number) of a convolution of the values, later ones included, that
            Zoology's form adds to its outputs; None for no convolution.
    """

    num_heads: Size | None = 1
    rotary_fraction: Share = 0.0
    num_landmarks: Size = 64
    causal: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]
    l_max: Length = 1024
    iterations: Repeats = 6
    pinverse: str = "iterative"
    conv_kernel_size: Repeats | None = None

    @property
    def tokens_per_landmark(self) -> int:
        """Tokens per landmark of the causal form."""
        return -(-self.l_max // self.num_landmarks)

    def setup(self) -> None:
        super().setup()
        expect_choice("pinverse", self.pinverse, PINVERSES)
        size = self.conv_kernel_size
        if size is None:
            return
        expect(not self.causal, "conv_kernel_size", size, "None with causal = True")
        expect(size % 2 == 1, "conv_kernel_size", size, "an odd number")
        self.conv_kernel = self.param("conv_kernel", named(uniform(size**-0.5), None), (size,))

    def _around(self, v: Float[Array, "B N H V"]) -> Float[Array, "B N H V"]:
        """Convolve the values with taps centred on each token, one number per tap."""
        reach, length = len(self.conv_kernel) // 2, v.shape[1]
        padded = jnp.pad(v, ((0, 0), (reach, reach), (0, 0), (0, 0)))
        taps = self.conv_kernel.astype(v.dtype)
        return sum((tap * padded[:, i : i + length] for i, tap in enumerate(taps)), jnp.zeros_like(v))

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        q, k, v = self.equal_heads(x, state, context)
        if not self.causal:
            how: dict[str, Any] = {"iterations": self.iterations, "pinverse": self.pinverse}
            y = ops.nystrom_attention(q, k, v, num_landmarks=self.num_landmarks, **how)
            return self.out(y if self.conv_kernel_size is None else y + self._around(v)), None
        options: dict[str, Any] = {"implementation": self.implementation}
        options["tokens_per_landmark"] = self.tokens_per_landmark
        y, state = context.run(ops.landmark_attention, q, k, v, initial_state=state, **options)
        return self.out(y), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        self.expect_causal()
        heads, _, width = self.layout
        slots = -(-expect_max_length(max_length) // self.tokens_per_landmark)
        sizes = slots, self.tokens_per_landmark, heads, width, width
        return ops.init_landmark_state(batch_size, *sizes, dtype)

    def state_size(self, length: int) -> int:
        """Return 2 d m, Zoology's count of the landmarks; the tokens of the last chunk are stored, too."""
        return 2 * self.d_model * self.num_landmarks
