"""Base classes of mixers that select tokens: full attention, a weight per token, an auxiliary loss.

A mixer that limits the number of selected tokens adds its loss to Flax's collection "losses":

    (y, _), collected = mixer.apply(variables, x, mutable=["losses"])
    loss = task_loss + auxiliary_loss(collected)

Losses are collected only if that collection is mutable and the call does not continue from a state.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from based_jax.fields import Share, Size
from based_jax.mixers.contract import Context, Projection
from based_jax.mixers.softmax_heads import SoftmaxHeads, expect_whole_rows
from based_jax.ops import selection
from based_jax.typing import Array, Float, Int, Mask, State
from based_jax.validate import expect

LOSSES = "losses"
"""The collection of auxiliary losses."""


def auxiliary_loss(collected: Any) -> Float[Array, ""]:
    """Return the sum of the losses that the mixers of a model added in one call; 0 if there were none."""
    return sum(jax.tree.leaves(collected.get(LOSSES, {})), jnp.zeros(()))


class SelectionHeads(SoftmaxHeads):
    """Softmax attention over the whole past; by default one head without positions, as in Zoology."""

    is_pure: ClassVar[bool] = False

    num_heads: Size | None = 1
    rotary_fraction: Share = 0.0
    qkv_bias: bool = True
    out_bias: bool = True

    def scores(self, outputs: int = 1, bias: bool = False) -> Projection:
        """Return the linear map that scores tokens, always in float32."""
        return self.linear(outputs, "embed", None, bias=bias, dtype=self.wide)

    def add_loss(self, loss: Float[Array, ""]) -> None:
        """Add to the auxiliary losses of this call."""
        if not self.is_initializing():  # else it would become one of the variables
            self.sow(LOSSES, "selection", loss)


class Lookups(SelectionHeads):
    """Zoology's prototypes: attention that is added to the mixer's input with a weight per token.

    Attributes:
        hard: update only the tokens with the highest weights, as in Zoology's evaluation. Not causal, hence
            without a state; Zoology trains the soft form.
    """

    hard: bool = False

    @property
    def causal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether no output depends on later inputs: not with `hard`, which ranks whole segments."""
        return not self.hard

    def weigh(self, x: Float[Array, "B N D"]) -> Float[Array, "B N"]:
        """Return the weight of each token, in float32."""
        raise NotImplementedError(f"{type(self).__name__} does not define weigh")

    def count(self, lengths: Int[Array, "B N"]) -> Int[Array, "B N"]:
        """Return the number of tokens that `hard` selects in segments of N tokens: ceil(sqrt(N))."""
        return root_of(lengths)

    def loss(
        self, weights: Float[Array, "B N"], lengths: Int[Array, "B N"], mask: Mask | None
    ) -> Float[Array, ""] | None:
        """Return the auxiliary loss, if there is one."""
        return None

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        if self.hard:
            expect_whole_rows("hard = True", state=state)
        weights = self.weigh(x)
        if not context.has_state:
            lengths = selection.segment_lengths(context.token_positions, x.shape[0])
            loss = self.loss(weights, lengths, context.mask)
            if loss is not None:
                self.add_loss(loss)
            if self.hard:
                chosen = selection.highest(weights, self.count(lengths), context.token_positions)
                weights = jnp.where(chosen, weights, 0)
        attended, state = self.attend(x, state, context)
        return x + (weights[..., None] * attended).astype(x.dtype), state

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        expect(not self.hard, "hard", self.hard, "False for a state: the other form reads whole rows")
        return super().empty_state(batch_size, max_length, dtype)


def root_of(lengths: Int[Array, "B N"]) -> Int[Array, "B N"]:
    """Return ceil(sqrt(N)) for segments of N tokens."""
    # A GPU's square root may be off in its last bit: `ceil` would then return 5 for 16 tokens.
    root = jnp.round(jnp.sqrt(lengths.astype(jnp.float32))).astype(jnp.int32)
    return root + (root**2 < lengths)
