"""Conv-basis attention as a mixer: scores computed from a few of the keys (Gu et al., "Conv-Basis").

    y_i = sum_{j <= i} softmax_j(q_{s + i - j} . k_s / sqrt(d_h)) v_j,     s the start of j's segment

The paper approximates trained softmax attention, so the parameters are the same, and searches for the
segments in each text. That search reads the whole text. Here the starts are fixed, which is causal with or
without rotary positions; fixed starts and decoding are ours.
"""

from typing import Any

from based_jax import ops
from based_jax.fields import Count
from based_jax.mixers.contract import Context, register
from based_jax.mixers.softmax_heads import SoftmaxHeads, expect_max_length
from based_jax.typing import Array, Float, State

POWERS = (0, *(2**n for n in range(31)))
"""Short segments at a document's beginning, and log2(N) + 2 of them in N tokens."""


@register("conv_basis")
class ConvBasis(SoftmaxHeads):
    """Attention whose scores depend on the distance only, within segments that start at fixed positions.

    The state holds the values, one key per segment and the kernels. It grows with the text, and `init_state`
    needs `max_length`.

    Attributes:
        starts: positions in a document at which segments begin, ascending from 0; None is 0, 1, 2, 4, 8, ...
        gradient: "anchors" is the gradient of these outputs, "surrogate" that of the softmax attention that
            they approximate; see `ops.conv_attention`. Only "anchors" passes through a state.
        implementation: passed to `ops.conv_attention`.
    """

    starts: tuple[Count, ...] | None = None
    gradient: str = "anchors"

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        q, k, v = self.equal_heads(x, state, context)
        how: dict[str, Any] = {"gradient": self.gradient, "implementation": self.implementation}
        starts = POWERS if self.starts is None else self.starts
        starts = starts[: state.anchors.shape[1]] if context.has_state else starts
        y, state = context.run(ops.conv_attention, q, k, v, starts=starts, initial_state=state, **how)
        return self.out(y), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, _, width = self.layout
        slots = expect_max_length(max_length)
        segments = len(self._starts_below(slots))
        return ops.init_conv_attention_state(batch_size, slots, segments, heads, width, width, dtype)

    def state_size(self, length: int) -> int:
        """Return (d + k H) N + k d: values, and k kernels and keys."""
        heads, _, width = self.layout
        segments = len(self._starts_below(length))
        return heads * (width * length + segments * (length + width))

    def _starts_below(self, length: int) -> tuple[int, ...]:
        return tuple(start for start in self.starts or POWERS if start < length)
