"""Settings of runs that older versions started, under today's names, so that they can be resumed."""

import dataclasses
from typing import Any

from based_jax.training.optimizer import OptimizerConfig


def todays_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """The "train" entry of a config.json with what was renamed or added since; today's own stays as it is.

    The optimizer's defaults do what it did before it had the settings that are missing.
    """
    settings = dict(saved)
    if isinstance(settings.get("remat"), bool):  # it was a switch for "block" before there was "dots"
        settings["remat"] = "block" if settings["remat"] else "none"
    if isinstance(settings.get("optimizer"), dict):
        optimizer = dict(settings["optimizer"])
        if "final_learning_rate" in optimizer:
            optimizer["final_learning_rate_share"] = optimizer.pop("final_learning_rate")
        # Before a run could be extended, its schedule always ended with it.
        optimizer.setdefault("schedule_steps", settings.get("steps"))
        settings["optimizer"] = dataclasses.asdict(OptimizerConfig()) | optimizer
    return settings
