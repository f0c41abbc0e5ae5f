"""NystromFormer: softmax attention through a few landmarks (Xiong et al. 2021; Zoology's code).

    causal:      y_i = softmax over the landmarks of the chunks before i's and the tokens of i's chunk
    not causal:  y = softmax(q k~^T) pinv(softmax(q~ k~^T)) softmax(q~ k^T) v,  masked as in Zoology's code

A landmark is the mean of a chunk of the sequence; `ops.nystrom` has both forms. Zoology's form is not causal:
its chunks include later tokens. The causal form, the default, is ours.
"""

from typing import Any

from based_jax import ops
from based_jax.fields import Length, Repeats, Share, Size
from based_jax.mixers.contract import Context, register
from based_jax.mixers.softmax_heads import SoftmaxHeads, expect_max_length
from based_jax.typing import Array, Float, State


@register("nystrom")
class Nystrom(SoftmaxHeads):
    """Attention through landmarks, causal or as in Zoology's code.

    Attributes:
        num_landmarks: m, landmarks of a row.
        causal: False is Zoology's form, which takes whole rows only: no state, segments or padding.
        l_max: tokens of the longest row; the causal form's chunks are l_max / m tokens long, rounded up. A
            longer row has more landmarks.
        iterations: iterations of the pseudo-inverse in Zoology's form.
    """

    num_heads: Size | None = 1
    rotary_fraction: Share = 0.0
    num_landmarks: Size = 64
    causal: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]
    l_max: Length = 1024
    iterations: Repeats = 6

    @property
    def tokens_per_landmark(self) -> int:
        """Tokens per landmark of the causal form."""
        return -(-self.l_max // self.num_landmarks)

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        q, k, v = self.equal_heads(x, state, context)
        if not self.causal:
            how = {"num_landmarks": self.num_landmarks, "iterations": self.iterations}
            return self.out(ops.nystrom_attention(q, k, v, **how)), None
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
