"""What to do about a step whose loss or gradient is not finite, or whose loss is far above the usual.

`guard` puts the judgement into the step itself: a bad step's update is not applied, whatever follows, and the
running median that it is judged by is part of the optimizer's state, so that a resumed run judges as one that
was never stopped.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_choice

WINDOW = 64  # good losses that the running median is over
ENOUGH = 16  # good losses before which there are no spikes: the first steps fall from a height


@dataclasses.dataclass(frozen=True)
class BadLossConfig:
    """Loss or gradient NaN or infinite, or a loss above a multiple of the running median."""

    on_bad_loss: str = "stop"
    """after a non-finite loss or gradient, or a spike: stop, skip the update, or rollback to the last
    checkpoint and go on after the batch that did it"""
    spike_factor: float | None = None
    """also call a loss bad above so many times the median of the last 64 good ones"""
    max_bad_losses: int = 3
    """most bad steps in a row, or rollbacks to one checkpoint"""

    def __post_init__(self) -> None:
        expect_choice("on_bad_loss", self.on_bad_loss, ("stop", "skip", "rollback"))
        factor = self.spike_factor
        expect(factor is None or factor > 1, "spike_factor", factor, "above 1")
        expect(self.max_bad_losses >= 1, "max_bad_losses", self.max_bad_losses, "at least 1")


class BadLoss(ValueError):
    """The loss or its gradient is not finite, or spiked, more often than was tolerated."""


class GuardState(NamedTuple):
    """State of the optimizer, and what the next loss is judged by."""

    inner: Any
    recent: Float[Array, " window"]  # the last good losses in any order, NaN in slots not yet used
    good: Int[Array, ""]  # good steps so far
    in_a_row: Int[Array, ""]  # bad steps since the last good one
    bad: Int[Array, ""]  # bad steps so far


def guard(
    optimizer: optax.GradientTransformation, config: BadLossConfig
) -> optax.GradientTransformation | optax.GradientTransformationExtraArgs:
    """An optimizer whose update of a bad step is nothing at all; `optimizer` itself if the run just stops.

    `update` needs the step's loss as `value`.
    """
    if config.on_bad_loss == "stop" and config.spike_factor is None:
        return optimizer

    def init(params: Any) -> GuardState:
        zero = jnp.zeros((), jnp.int32)
        return GuardState(optimizer.init(params), jnp.full(WINDOW, jnp.nan, jnp.float32), zero, zero, zero)

    def update(updates: Any, state: Any, params: Any = None, value: Any = None, **_: Any) -> Any:
        bad = ~(jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(updates)))
        if config.spike_factor is not None:
            bad |= (state.good >= ENOUGH) & (value > config.spike_factor * jnp.nanmedian(state.recent))
        new, inner = optimizer.update(updates, state.inner, params)
        new = jax.tree.map(lambda leaf: jnp.where(bad, jnp.zeros_like(leaf), leaf), new)
        inner = jax.tree.map(lambda old, leaf: jnp.where(bad, old, leaf), state.inner, inner)
        slot = state.good % WINDOW
        recent = state.recent.at[slot].set(jnp.where(bad, state.recent[slot], value))
        good = jnp.where(bad, 0, 1).astype(jnp.int32)
        in_a_row = jnp.where(bad, state.in_a_row + 1, 0)
        return new, GuardState(inner, recent, state.good + good, in_a_row, state.bad + 1 - good)

    return optax.GradientTransformationExtraArgs(init, update)


def guard_metrics(opt_state: Any) -> dict[str, Array]:
    """`bad_in_a_row` and `bad_losses` of a guarded optimizer, nothing of another."""
    if not isinstance(opt_state, GuardState):
        return {}
    return {"bad_in_a_row": opt_state.in_a_row, "bad_losses": opt_state.bad}


def updates_made(step: Int[Array, ""], opt_state: Any) -> Int[Array, ""]:
    """Return updates before `step`: the position in the schedule, which bad steps do not move."""
    return step - opt_state.bad if isinstance(opt_state, GuardState) else step


def is_bad(values: Mapping[str, float]) -> bool:
    """Whether a step was bad, by its metrics."""
    finite = all(math.isfinite(values[name]) for name in ("loss", "grad_norm"))
    return not finite or values.get("bad_in_a_row", 0) > 0
