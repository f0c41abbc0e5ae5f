"""Convert settings of runs started by older versions to current names, so that they can be resumed."""

import dataclasses
from typing import Any

from based_jax.training.optimizer import OptimizerConfig


def todays_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Update the "train" entry of a config.json with settings renamed or added since; current ones are kept.

    For missing optimizer settings the defaults match the older behaviour.
    """
    settings = dict(saved)
    if isinstance(settings.get("remat"), bool):  # a switch for "block" before "dots" was added
        settings["remat"] = "block" if settings["remat"] else "none"
    if isinstance(settings.get("optimizer"), dict):
        optimizer = dict(settings["optimizer"])
        if "final_learning_rate" in optimizer:
            optimizer["final_learning_rate_share"] = optimizer.pop("final_learning_rate")
        # Before runs could be extended, the schedule always ended with the run.
        optimizer.setdefault("schedule_steps", settings.get("steps"))
        settings["optimizer"] = dataclasses.asdict(OptimizerConfig()) | optimizer
    return settings
