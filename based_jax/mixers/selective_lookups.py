"""SelectiveLookups: attention for the tokens that a softmax over time selects (Zoology, section 5).

    not causal:  y_i = x_i + exp(s_i) / sum_j exp(s_j) * attention(x)_i,   s = x w + b
    causal:      the same with the sum over j <= i, without b

Zoology sums over all tokens, so later tokens change all weights. With `hard`, Zoology's evaluation, only the
ceil(sqrt(N)) tokens with the highest weights get the update.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from based_jax import ops
from based_jax.mixers.contract import Context, register
from based_jax.mixers.selection_heads import SelectionHeads, root_of
from based_jax.mixers.softmax_heads import expect_whole_rows
from based_jax.ops.selection import NOTHING, highest, running_log_sum, segment_lengths, segment_softmax
from based_jax.typing import Array, Float, State
from based_jax.validate import expect


class RunningSelection(NamedTuple):
    """The keys and values of each row, and the sum that normalises its scores."""

    cache: ops.KVCache
    log_sum: Float[Array, " B"]
    """log sum of exp(s_j) over the current segment, float32"""


@register("selective_lookups")
class SelectiveLookups(SelectionHeads):
    """Attention weighted by a softmax over time, causal or as in Zoology's code.

    Attributes:
        causal: False is Zoology's form, which sums over the whole row and has no state.
        hard: update only the tokens with the highest weights; needs causal = False.
    """

    causal: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]
    hard: bool = False

    def setup(self) -> None:
        super().setup()
        expect(not (self.hard and self.causal), "causal", self.causal, "False with hard = True")
        # The bias has no effect on a softmax; Zoology's checkpoints have one.
        self.selecting = self.scores(bias=not self.causal)

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        if not self.causal:
            expect_whole_rows("causal = False", state=state)
        scores, positions = self.selecting(x)[..., 0], context.token_positions
        log_sum = state.log_sum if context.has_state else jnp.full(x.shape[0], NOTHING, scores.dtype)
        if self.causal:
            log_sums, log_sum = running_log_sum(scores, log_sum, positions)
            exponents = scores - log_sums
            weights = jnp.exp(exponents if context.mask is None else jnp.where(context.mask, exponents, 0))
        else:
            weights = segment_softmax(scores, positions)
            if self.hard:
                chosen = highest(weights, root_of(segment_lengths(positions, x.shape[0])), positions)
                weights = jnp.where(chosen, weights, 0)
        attended, cache = self.attend(x, state and state.cache, context)
        return x + (weights[..., None] * attended).astype(x.dtype), RunningSelection(cache, log_sum)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        self.expect_causal()
        cache = super().empty_state(batch_size, max_length, dtype)
        return RunningSelection(cache, jnp.full(batch_size, NOTHING, self.wide))
