"""Read studies.toml, and name what Based's and what Zoology's studies share: the data of each scale."""

from importlib import resources
from typing import Any

from based_jax.files import read_toml

TEXTS: dict[str, dict[str, Any]] = read_toml(str(resources.files("based_jax") / "experiments/studies.toml"))
"""Study -> its title, source, notes and lists."""

DATA: dict[str, dict[str, Any]] = {scale: TEXTS["based_data"][scale] for scale in ("paper", "cpu", "smoke")}
"""Flags of the trainer at each scale."""

ABOUT: dict[str, str] = TEXTS["based_data"]["about"]
"""A sentence about each scale."""

CPU_RATE = "0.01"
"""The learning rate of the studies that train one: in `mqar_tradeoff` no other was better by 0.001."""

ONE_RATE = {**DATA, "cpu": {**DATA["cpu"], "learning_rates": CPU_RATE}}
"""Flags of the trainer, with one learning rate at the scale cpu."""

SLICE = {"paper": ("num_pairs", "256"), "cpu": ("num_pairs", "64"), "smoke": ("num_pairs", "8")}
"""The hardest test."""


def zoology_data(scale: str, family: str = "") -> dict[str, Any]:
    """Return the trainer's flags that Zoology's studies share, at each scale.

    At the scale cpu Attention may take six times the steps. Without a convolution it picks among a text's
    values for thousands of steps, and then learns to recall within a few hundred; there it stops.
    """
    flags = TEXTS["zoology_data"][scale]
    return {**flags, "epochs": 72} if (scale, family) == ("cpu", "Attention") else flags
