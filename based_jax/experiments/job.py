"""Define a job: a model of a study, trained with each learning rate of its grid by one `train mqar`.

What the jobs of Based's and of Zoology's studies share comes from studies.toml: the data of each scale.
"""

import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from based_jax.files import read_toml
from based_jax.training.named_options import split_mixers
from based_jax.training.recipes import flag_words
from based_jax.validate import expect_choice

TRAINER = (sys.executable, "-m", "based_jax", "train", "mqar")
"""The trainer is a separate process: if it runs out of memory, the study goes on."""

TEXTS: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_name("studies.toml"))
"""Study -> its title, source, notes and lists."""

DATA: dict[str, dict[str, Any]] = {scale: TEXTS["based_data"][scale] for scale in ("paper", "cpu", "smoke")}
"""Flags of the trainer at each scale."""

ABOUT: dict[str, str] = TEXTS["based_data"]["about"]
"""A sentence about each scale."""

CPU_RATE = "0.01"
"""The learning rate of the studies that train one: in `mqar_tradeoff` the better of two for most families."""

ONE_RATE = {**DATA, "cpu": {**DATA["cpu"], "learning_rates": CPU_RATE}}
"""Flags of the trainer, with one learning rate at the scale cpu."""

SLICE = {"paper": ("num_pairs", "256"), "cpu": ("num_pairs", "64"), "smoke": ("num_pairs", "8")}
"""The hardest test."""


@dataclass(frozen=True)
class Job:
    """One point of a figure before it is trained."""

    family: str  # the figure's line that the point belongs to, "Based"
    setting: str  # what distinguishes it within its family, "d 64, d' 16"
    model: str  # `--mixer` of the trainer, or `--layers` if these are several
    flags: Mapping[str, Any]  # further flags of the trainer by their names, such as {"d_model": 64}
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the figure only, such as {"window": 8}
    trainer: ClassVar[Sequence[str]] = TRAINER

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory."""
        flag = "--layers" if len(split_mixers("layers", self.model)) > 1 else "--mixer"
        return [flag, self.model, *flag_words(self.flags)]

    @property
    def name(self) -> str:
        """Name of its run directory: readable, and different for different flags."""
        words = re.sub(r"[^a-z0-9]+", "-", f"{self.family} {self.setting}".lower()).strip("-")
        return f"{words}-{zlib.crc32(' '.join(self.arguments).encode()):08x}"

    def command(self, workdir: Path, trainer: Sequence[str] | None = None) -> list[str]:
        """Return the process's command line, which starts with `trainer`, or the job's own."""
        return [*(trainer or self.trainer), *self.arguments, "--workdir", str(workdir)]

    @property
    def line(self) -> str:
        """The command line to type."""
        return " ".join(["based-jax", *self.trainer[3:], *self.arguments])


def of_families(jobs: Sequence[Job], families: str | None) -> list[Job]:
    """Return the jobs of the comma-separated families; None selects all."""
    if families is None:
        return list(jobs)
    known = list(dict.fromkeys(job.family for job in jobs))
    parts, wanted = families.split(","), []
    while parts:
        # A name may have commas itself: the longest that begins here counts.
        names = [",".join(parts[:size]).strip() for size in range(len(parts) + 1)]
        size = max((size for size, name in enumerate(names) if name in known), default=1)
        expect_choice("families", names[size], known)
        wanted.append(names[size])
        del parts[:size]
    return [job for job in jobs if job.family in wanted]


def zoology_data(scale: str, family: str) -> dict[str, Any]:
    """Return the trainer's flags that Zoology's studies share, at each scale.

    At the scale cpu Attention may take six times the steps. Without a convolution it picks among a text's
    values for thousands of steps, and then learns to recall within a few hundred; there it stops.
    """
    flags = TEXTS["zoology_data"][scale]
    return {**flags, "epochs": 72} if (scale, family) == ("cpu", "Attention") else flags
