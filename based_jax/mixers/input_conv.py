"""BaseConv with input-dependent filters (Zoology, section 4 and appendix H.8; spec of Zoology, 3.22).

    y = (x W + b) * (h(x) conv x)

    programmatic     h_s = 1 if the segment's token ids have repeated at the distance s >= 1
    autocorrelation  h_s = softmax over the t distances of the largest sum_i p_i.p_{i-s} / N, else 0;  p = x P

The paper's filters are made of the whole row. Here the programmatic one of each token is made of the tokens
up to it, so that it is causal and has a state; that of the autocorrelation is not causal. The paper's spikes
have height 1: with a softmax in their place, P learns.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Repeats, Size
from based_jax.mixers.contract import Card, Mixer, Projection
from based_jax.mixers.softmax_heads import expect_max_length, expect_whole_rows
from based_jax.ops.ring import put
from based_jax.typing import Array, Float, Int, Mask, Positions, SegmentIds, State
from based_jax.validate import expect, expect_array, expect_choice

FILTERS = ("programmatic", "autocorrelation")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class InputConvState:
    """Everything that the programmatic filter's distances may lead back to."""

    inputs: Float[Array, "B W D"]
    tokens: Int[Array, "B W"]
    last: Int[Array, "B W"]
    """index of the last token that repeated at each distance, -1 if none did"""
    stream: ops.Stream


class InputConv(Mixer):
    """Gated convolution whose filter is made of the input: of token ids, or of the inputs' autocorrelation.

    Attributes:
        filter: "programmatic", which needs the token ids, or "autocorrelation", which is not causal and takes
            whole rows only: no state or segments.
        lags: distances t that the autocorrelation picks.
        width: channels of P; default d_model.
    """

    wants_tokens: ClassVar[bool] = True
    card: ClassVar[Card] = Card(
        equation="(x W + b) * (h conv x), h_s = 1 where tokens have repeated at distance s",
        training="N^2 D, or N (t + log N) D",
        state="D N",
        decoding="D N",
        source="Zoology, section 4 and appendix H.8",
        parity=(),
    )

    filter: str = "programmatic"
    lags: Repeats = 8
    width: Size | None = None

    def setup(self) -> None:
        expect_choice("filter", self.filter, FILTERS)
        expect(self.lags >= 1, "lags", self.lags, "at least 1")
        expect(self.width is None or self.width >= 1, "width", self.width, "None or at least 1")
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}
        self.projection = Projection((self.d_model,), ("embed", "mlp"), bias=True, **options)
        if self.filter == "autocorrelation":
            self.comparison = Projection((self.width or self.d_model,), ("embed", "mlp"), **options)

    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
        tokens: Int[Array, "B N"] | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        """As every mixer; `tokens` are the ids that the programmatic filter compares."""
        x = self.check_input(x)
        if self.filter == "autocorrelation":
            expect_whole_rows("filter = 'autocorrelation'", state=state, segment_ids=segment_ids)
            compared = self.comparison(x).astype(jnp.promote_types(x.dtype, jnp.float32))
            lags, strength = ops.strongest_lags(compared, self.lags, mask)
            return self.projection(x) * ops.shifted_sum(x, lags, jax.nn.softmax(strength)), None
        if tokens is None:
            expect(self.is_initializing(), "tokens", None, "ids (B, N) with filter = 'programmatic'")
            return self.projection(x), state
        batch, length, _ = x.shape
        expect_array("tokens", tokens, (batch, length), "integer")
        places, stream = ops.advance(
            None if state is None else state.stream, batch, length, segment_ids, mask
        )
        if state is None:
            inputs, seen, last = x, tokens, jnp.full((batch, length), -1, jnp.int32)
        else:
            inputs, seen = (
                put(ring, new, places, stream) for ring, new in ((state.inputs, x), (state.tokens, tokens))
            )
            last = state.last
        matrix, last = ops.repeated_lags(seen, last, places)
        y = self.projection(x) * jnp.einsum("bnw,bwd->bnd", matrix.astype(x.dtype), inputs.astype(x.dtype))
        if state is None:
            return y, None
        # The newest tokens of a longer row have replaced its oldest.
        y = jnp.where((stream.length <= seen.shape[1])[:, None, None], y, jnp.nan)
        return y, InputConvState(inputs, seen, last, stream)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        expect(self.filter == "programmatic", "filter", self.filter, "'programmatic' for a state")
        room = (batch_size, expect_max_length(max_length))
        return InputConvState(
            inputs=jnp.zeros((*room, self.d_model), self.dtype if dtype is None else dtype),
            tokens=jnp.zeros(room, jnp.int32),
            last=jnp.full(room, -1, jnp.int32),
            stream=ops.init_stream(batch_size),
        )

    def state_size(self, length: int) -> int:
        """d N: a long filter reaches every input."""
        return self.d_model * length
