"""Stop at, or skip, steps with a non-finite loss or gradient."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import optax

from based_jax.typing import Array, Int
from based_jax.validate import INT32_MAX, expect, expect_choice


@dataclasses.dataclass(frozen=True)
class BadLossConfig:
    """What happens after a bad step, one with a non-finite loss or gradient."""

    on_bad_loss: str = "stop"
    """after a non-finite loss or gradient: stop, or skip the update"""
    max_bad_losses: int = 3
    """maximum number of skipped steps in a row"""

    def __post_init__(self) -> None:
        expect_choice("on_bad_loss", self.on_bad_loss, ("stop", "skip"))
        expect(self.max_bad_losses >= 1, "max_bad_losses", self.max_bad_losses, "at least 1")


class BadLoss(ValueError):
    """The loss or its gradient was not finite, more often than `max_bad_losses` allows."""


def guard(optimizer: optax.GradientTransformation, config: BadLossConfig) -> optax.GradientTransformation:
    """Make the updates of bad steps zero; return `optimizer` unchanged if the config only stops the run."""
    return optimizer if config.on_bad_loss == "stop" else optax.apply_if_finite(optimizer, INT32_MAX)


def guard_metrics(opt_state: Any) -> dict[str, Array]:
    """Return the metrics `bad_in_a_row` and `bad_losses`; empty if the optimizer is not guarded."""
    if not isinstance(opt_state, optax.ApplyIfFiniteState):
        return {}
    return {"bad_in_a_row": opt_state.notfinite_count, "bad_losses": opt_state.total_notfinite}


def updates_made(step: Int[Array, ""], opt_state: Any) -> Int[Array, ""]:
    """Count the updates before `step`: the position in the schedule, which bad steps do not advance."""
    return step - opt_state.total_notfinite if isinstance(opt_state, optax.ApplyIfFiniteState) else step


def is_bad(values: Mapping[str, float]) -> bool:
    """Return whether a step was bad, given its metrics."""
    finite = all(math.isfinite(values[name]) for name in ("loss", "grad_norm"))
    return not finite or values.get("bad_in_a_row", 0) > 0
