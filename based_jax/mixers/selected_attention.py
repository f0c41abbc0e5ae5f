"""Attention for selected queries, the sparse hybrids of Zoology (section 5 and appendix C.2).

    y_i = f_i softmax(q_i k^T / sqrt(d)) v

    full          f_i = 1
    random        f_i ~ Bernoulli(share), the control
    programmatic  f_i = 1 if the last `order` token ids occurred before in the segment
    learned       f_i = s_i if i is selected, else 0;   s = sigmoid(u w),   loss = penalty relu(sum s - k) / N

The paper selects the k = share N tokens with the highest scores, which is not causal, and computes only their
queries. The causal form, the default, selects the tokens with s_i > 1/2; the loss drives their number to k.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from based_jax.fields import AtLeastZero, Count, Repeats, Share
from based_jax.mixers.contract import Context, register
from based_jax.mixers.selection_heads import SelectionHeads
from based_jax.mixers.softmax_heads import expect_whole_rows
from based_jax.ops import selection
from based_jax.typing import Array, Bool, Float, Int, State
from based_jax.validate import expect, expect_array, expect_choice


class CacheWithTokens(NamedTuple):
    """Keys and values, and all token ids for the programmatic selection."""

    cache: ops.KVCache
    tokens: Int[Array, "B W"]


SELECTIONS = ("full", "random", "programmatic", "learned")


@register("selected_attention")
class SelectedAttention(SelectionHeads):
    """Softmax attention whose output is kept for selected tokens only.

    Attributes:
        selection: "full", "random", "programmatic" or "learned".
        share: share of tokens that "random" and "learned" select (the paper's k = 256 of 2048).
        causal: False selects the k highest scores of the row if learned, and has no state.
        noise: standard deviation of Gaussian noise on the learned scores, in calls that have an rng
            "selection".
        order: token ids that must occur again: 1 is the paper's equation 3, 2 the bigrams of its appendix.
        penalty: factor of the auxiliary loss (`auxiliary_loss`).
        seed: seed of the random selection, by position in the segment; a call without a state and with an rng
            "selection" redraws for every token.
    """

    wants_tokens: ClassVar[bool] = True

    selection: str = "learned"
    share: Share = 0.125
    causal: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]
    noise: AtLeastZero = 0.1
    order: Repeats = 1
    penalty: AtLeastZero = 0.001
    seed: Count = 0

    def setup(self) -> None:
        super().setup()
        expect_choice("selection", self.selection, SELECTIONS)
        expect(self.share > 0, "share", self.share, "above 0, at most 1")
        if self.selection == "learned":
            self.selecting = self.scores()

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        if not self.causal:
            expect_whole_rows("causal = False", state=state)
        positions = context.token_positions
        history: Any = None
        redraws = not context.has_state and self.has_rng("selection")
        if self.selection == "learned":
            scores = self.selecting(x)[..., 0]
            weights = jax.nn.sigmoid(scores)
            if redraws:
                scores = scores + self.noise * jax.random.normal(self.make_rng("selection"), scores.shape)
            chosen = scores > 0
            counts = self._counts(x.shape[1])
            if not context.has_state:
                lengths = selection.segment_lengths(positions, x.shape[0])
                self.add_loss(self._loss(weights, lengths, counts, positions))
                if not self.causal:
                    chosen = selection.highest(scores, jnp.asarray(counts)[lengths], positions)
            weights = jnp.where(chosen, weights, 0)
            if not self.causal and context.segment_ids is None:
                q, k = self.rotated(self.q(x), self.k(x), context)
                y = selection.attention_of_some(q, k, self.v(x), chosen, int(counts[-1]), mask=context.mask)
                y = self.out(y)
                return (weights[..., None] * y).astype(y.dtype), None
        elif self.selection == "random":
            weights = self._random(positions, x.shape[:2], redraws)
        elif self.selection == "programmatic" and not self.is_initializing():
            tokens: Any = context.tokens
            expect(tokens is not None, "tokens", None, "ids (B, N) with selection = 'programmatic'")
            expect_array("tokens", tokens, x.shape[:2], "integer")
            if context.has_state:
                weights, history = selection.repeated_in(
                    state.tokens, tokens, positions, context.stream, self.order
                )
            else:
                inside = {"segment_ids": context.segment_ids, "mask": context.mask}
                weights = selection.repeated(tokens, self.order, **inside)
        else:
            weights = jnp.ones((1, 1))
        cache: Any = state.cache if isinstance(state, CacheWithTokens) else state
        y, cache = self.attend(x, cache, context)
        state = CacheWithTokens(cache, history) if isinstance(state, CacheWithTokens) else cache
        return (weights[..., None] * y).astype(y.dtype), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        self.expect_causal()
        cache = super().empty_state(batch_size, max_length, dtype)
        if self.selection != "programmatic":
            return cache
        return CacheWithTokens(cache, jnp.zeros((batch_size, cache.slots), jnp.int32))

    def _counts(self, longest: int) -> np.ndarray:
        """Return k for segments of 0 to `longest` tokens: share N rounded up, ignoring rounding errors."""
        return np.ceil(self.share * np.arange(longest + 1) - 1e-9).astype(np.int32)

    def _loss(
        self, weights: Float[Array, "B N"], lengths: Array, counts: Any, positions: ops.TokenPositions
    ) -> Float[Array, ""]:
        """Return relu(sum of weights - k), summed over all segments, per real token."""
        excess = jax.nn.relu(selection.segment_sum(weights, positions) - jnp.asarray(counts)[lengths])
        # Every token holds its segment's excess; divide by the length to count it once.
        excess = excess / jnp.maximum(lengths, 1)
        excess = excess if positions.mask is None else jnp.where(positions.mask, excess, 0)
        tokens = excess.size if positions.mask is None else jnp.maximum(jnp.sum(positions.mask), 1)
        return self.penalty * jnp.sum(excess) / tokens

    def _random(
        self, positions: ops.TokenPositions, shape: tuple[int, ...], redraws: bool
    ) -> Bool[Array, "rows N"]:
        if redraws:
            return jax.random.bernoulli(self.make_rng("selection"), self.share, shape)
        key, share = jax.random.key(self.seed), jnp.float32(self.share)

        def draw(position: Array) -> Array:
            return jax.random.bernoulli(jax.random.fold_in(key, position), share)

        return jax.vmap(jax.vmap(draw))(positions.positions)
