"""BaseConv with input-dependent filters (Zoology, section 4 and appendix H.8; Zoology's code).

    y = (x W + b) * (h(x) conv x)

    programmatic     h_s = 1 if the segment's token ids have repeated at the distance s >= 1;
                     with `copy_next` h_{s-1} = 1
    autocorrelation  h_s = softmax over the t distances of the largest sum_i p_i.p_{i-s} / N, else 0;  p = x P

The paper computes its filters from the whole row. Here the programmatic filter of a token is computed from
the tokens up to it, so it is causal and has a state; the autocorrelation filter is not causal. The paper's
spikes have height 1; the softmax used here lets P learn.

A repeated key lies s tokens after its first occurrence, and the value that it asks for one token less: the
construction of the appendix (H.8) takes values with `copy_next`, and keys without.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Repeats, Size
from based_jax.mixers.contract import Context, Mixer, register
from based_jax.mixers.softmax_heads import expect_max_length, expect_whole_rows
from based_jax.ops import selection
from based_jax.ops.core.kv_cache import put
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.typing import Array, Float, Int, State
from based_jax.validate import expect, expect_array, expect_choice

FILTERS = ("programmatic", "autocorrelation")


class InputConvState(NamedTuple):
    """All tokens and inputs that the programmatic filter may look back to."""

    inputs: Float[Array, "B W D"]
    tokens: Int[Array, "B W"]
    last: Int[Array, "B W"]
    """index of the last token that repeated at each distance, -1 if none did"""
    stream: ops.Stream


@register("input_conv")
class InputConv(Mixer):
    """Gated convolution whose filter is computed from token ids, or from the inputs' autocorrelation.

    Attributes:
        filter: "programmatic" (needs token ids), or "autocorrelation" (not causal; takes whole rows only, no
            state or segments).
        lags: number of distances t that the autocorrelation selects.
        width: channels of P; default d_model.
        copy_next: take the token after each repeated one instead of the repeated one ("programmatic" only).
    """

    wants_tokens: ClassVar[bool] = True

    filter: str = "programmatic"
    lags: Repeats = 8
    width: Size | None = None
    copy_next: bool = False

    @property
    def causal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether no output depends on later inputs, which an autocorrelation reads."""
        return self.filter == "programmatic"

    def setup(self) -> None:
        expect_choice("filter", self.filter, FILTERS)
        is_valid = not self.copy_next or self.filter == "programmatic"
        expect(is_valid, "copy_next", self.copy_next, f"False with filter = {self.filter!r}")
        self.projection = self.linear(self.d_model, "embed", "mlp", bias=True)
        if self.filter == "autocorrelation":
            self.comparison = self.linear(self.width or self.d_model, "embed", "mlp")

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        if self.filter == "autocorrelation":
            expect_whole_rows("filter = 'autocorrelation'", state=state, segment_ids=context.segment_ids)
            lags, strength = selection.strongest_lags(self.comparison(x), self.lags, context.mask)
            return self.projection(x) * selection.shifted_sum(x, lags, jax.nn.softmax(strength)), None
        tokens, positions, stream = context.tokens, context.token_positions, context.stream
        if tokens is None:
            expect(self.is_initializing(), "tokens", None, "ids (B, N) with filter = 'programmatic'")
            return self.projection(x), state
        expect_array("tokens", tokens, x.shape[:2], "integer")
        if context.has_state:
            held = ((state.inputs, x), (state.tokens, tokens))
            inputs, history = (put(cache, new, positions, stream) for cache, new in held)
            last = state.last
        else:
            inputs, history, last = x, tokens, jnp.full(x.shape[:2], -1, jnp.int32)
        matrix, last = selection.repeated_lags(history, last, positions)
        if self.copy_next:  # a repeated token is before this one, so the next is at most this one
            matrix = jnp.pad(matrix[..., :-1], ((0, 0), (0, 0), (1, 0)))
        y = self.projection(x) * jnp.einsum("bnw,bwd->bnd", matrix.astype(x.dtype), inputs.astype(x.dtype))
        if context.has_state:  # the newest tokens of a longer row have replaced its oldest
            y = nan_unless((stream.length <= history.shape[1])[:, None, None], y)
        return y, InputConvState(inputs, history, last, stream)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        expect(self.filter == "programmatic", "filter", self.filter, "'programmatic' for a state")
        shape = (batch_size, expect_max_length(max_length))
        inputs, tokens = jnp.zeros((*shape, self.d_model), dtype), jnp.zeros(shape, jnp.int32)
        return InputConvState(inputs, tokens, jnp.full(shape, -1, jnp.int32), ops.init_stream(batch_size))

    def state_size(self, length: int) -> int:
        """Return d N: a long filter reaches every input."""
        return self.d_model * length
