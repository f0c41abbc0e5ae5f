"""Stop at, or skip, steps with a non-finite loss or gradient, or with a loss spike.

`guard` makes the check inside the compiled step: the update of a bad step is never applied. The running
median that defines a spike is part of the optimizer's state, so a resumed run decides as an uninterrupted one
would.
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

WINDOW = 64  # number of good losses in the running median
ENOUGH = 16  # good losses needed before spikes are detected: the loss falls steeply in the first steps


@dataclasses.dataclass(frozen=True)
class BadLossConfig:
    """What counts as a bad step (non-finite loss or gradient, or a loss spike), and what happens then."""

    on_bad_loss: str = "stop"
    """after a non-finite loss or gradient, or a spike: stop, or skip the update"""
    spike_factor: float | None = None
    """also treat a loss as bad if it exceeds this multiple of the median of the last 64 good losses"""
    max_bad_losses: int = 3
    """maximum number of skipped steps in a row"""

    def __post_init__(self) -> None:
        expect_choice("on_bad_loss", self.on_bad_loss, ("stop", "skip"))
        factor = self.spike_factor
        expect(factor is None or factor > 1, "spike_factor", factor, "above 1")
        expect(self.max_bad_losses >= 1, "max_bad_losses", self.max_bad_losses, "at least 1")


class BadLoss(ValueError):
    """The loss or its gradient was not finite, or spiked, more often than `max_bad_losses` allows."""


class GuardState(NamedTuple):
    """The wrapped optimizer's state, and the statistics that decide whether the next loss is bad."""

    inner: Any
    recent: Float[Array, " window"]  # the last good losses in any order, NaN in slots not yet used
    good: Int[Array, ""]  # good steps so far
    in_a_row: Int[Array, ""]  # bad steps since the last good one
    bad: Int[Array, ""]  # bad steps so far


def guard(
    optimizer: optax.GradientTransformation, config: BadLossConfig
) -> optax.GradientTransformation | optax.GradientTransformationExtraArgs:
    """Make the updates of bad steps zero; return `optimizer` unchanged if the config only stops the run.

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
    """Return the metrics `bad_in_a_row` and `bad_losses`; empty if the optimizer is not guarded."""
    if not isinstance(opt_state, GuardState):
        return {}
    return {"bad_in_a_row": opt_state.in_a_row, "bad_losses": opt_state.bad}


def updates_made(step: Int[Array, ""], opt_state: Any) -> Int[Array, ""]:
    """Count the updates before `step`: the position in the schedule, which bad steps do not advance."""
    return step - opt_state.bad if isinstance(opt_state, GuardState) else step


def is_bad(values: Mapping[str, float]) -> bool:
    """Return whether a step was bad, given its metrics."""
    finite = all(math.isfinite(values[name]) for name in ("loss", "grad_norm"))
    return not finite or values.get("bad_in_a_row", 0) > 0
