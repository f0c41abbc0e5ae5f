"""A job: one model of a study, trained with every learning rate of its grid by one line of `train.mqar`."""

import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from based_jax.validate import expect_choice

J = TypeVar("J", bound="Job")

TRAINER = (sys.executable, "-m", "train.mqar")
"""The trainer is a program to its studies: one that dies of lack of memory takes nothing with it."""


@dataclass(frozen=True)
class Job:
    """One point of a figure before it is trained.

    Args:
        family: the line that the point belongs to, "Based".
        setting: what tells it from its family, "d 64, d' 16".
        model: `--mixer` of the trainer, or `--layers` if it has commas.
        flags: further flags of the trainer by their names, such as {"d_model": 64}.
        facts: what the figure needs beside the trainer's record, such as {"window": 8}.
    """

    family: str
    setting: str
    model: str
    flags: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory."""
        words = ["--layers" if "," in self.model else "--mixer", self.model]
        for name, value in self.flags.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        return words

    @property
    def name(self) -> str:
        """Of its run directory: readable, and different for different flags."""
        words = re.sub(r"[^a-z0-9]+", "-", f"{self.family} {self.setting}".lower()).strip("-")
        return f"{words}-{zlib.crc32(' '.join(self.arguments).encode()):08x}"

    def command(self, workdir: Path, trainer: Sequence[str] = TRAINER) -> list[str]:
        """The process's words."""
        return [*trainer, *self.arguments, "--workdir", str(workdir)]

    @property
    def line(self) -> str:
        """As one would type it."""
        return " ".join(["python", *TRAINER[1:], *self.arguments])


def of_families(jobs: Sequence[J], families: str | None) -> list[J]:
    """The jobs of the families that are named, with commas between; None names them all.

    Raises:
        ValueError: no job is of such a family.
    """
    if families is None:
        return list(jobs)
    known = list(dict.fromkeys(job.family for job in jobs))
    wanted = [family.strip() for family in families.split(",")]
    for family in wanted:
        expect_choice("families", family, known)
    return [job for job in jobs if job.family in wanted]


def segments(*parts: tuple[int, ...]) -> str:
    """(length, pairs) or (length, pairs, examples) as the trainer's --test and --train."""
    return ",".join(":".join(str(number) for number in part) for part in parts)


def rates(low: float, high: float, count: int) -> str:
    """`count` learning rates from 10^low to 10^high, evenly in their logarithms, as --learning-rates."""
    steps = max(count - 1, 1)
    return ",".join(f"{10 ** (low + (high - low) * i / steps):.4g}" for i in range(count))
