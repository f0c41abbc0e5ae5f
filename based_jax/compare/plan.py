"""Plan a comparison: its jobs, the sizes of their models, and how long they train."""

import json
import os
import queue
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from based_jax import command
from based_jax.experiments import mqar_tradeoff
from based_jax.experiments.based_data import ONE_RATE
from based_jax.experiments.job import Job
from based_jax.experiments.mixer_lines import families_of, mixer_jobs
from based_jax.experiments.slots import Slot
from based_jax.experiments.tasks import SMALL, TaskJob, task_flags
from based_jax.training.commands.synthetic import SyntheticConfig, facts_of
from based_jax.validate import expect, expect_choice

WIDTHS = {"smoke": (16, 32), "cpu": (32, 64), "paper": mqar_tradeoff.WIDTHS}
"""Default widths by scale."""

_LIKE = "attention"
FAMILIES = families_of(mqar_tradeoff.STUDY.jobs["cpu"])
"""Mixer -> its line in the papers' figure, which keeps its colour."""


class ComparedJob(Job):
    """A model of the comparison, on any task."""

    trainer = TaskJob.trainer


def jobs_of(
    mixers: Sequence[str], task: str, scale: str, widths: Sequence[int], more: Mapping[str, Any]
) -> list[Job]:
    """Return a job for each mixer and width, in the papers' two-layer model.

    Args:
        mixers: with options, as `parse_mixer` reads them.
        task: "mqar", or another of `based_jax.experiments.tasks`.
        scale: of the studies' data.
        more: flags of the trainer that replace those of the scale.
    """
    expect_choice("task", task, ("mqar", *SMALL))
    is_small = task == "mqar" or scale != "paper"
    expect(is_small, "scale", scale, f"cpu or smoke with the task {task}, whose papers have no common grid")
    flags = ONE_RATE[scale] if task == "mqar" else task_flags(task, scale)
    grid = [ComparedJob("", f"d {width}", _LIKE, {**flags, "d_model": width, **more}) for width in widths]
    return mixer_jobs("mixers", mixers, grid, _LIKE, FAMILIES)


def sizes(job: Job) -> str:
    """Return a line about a job's model; its flags are checked.

    Raises:
        SystemExit: status 2, if the trainer does not take the flags.
    """
    settings = command.parse(SyntheticConfig, job.arguments, prog="based-jax compare")
    found, _ = facts_of(settings), settings.sweep
    size = found["state_size"]
    state = "no state" if size is None else f"{4 * size:,} bytes of state"
    return f"{job.family}, {job.setting}: {found['parameters']:,} parameters, {state}"


class Times(NamedTuple):
    """Seconds of a job."""

    start: float  # of its process, with its data and compiled programs
    epoch: float

    def total(self, epochs: int) -> float:
        """Return the seconds of a job with this many epochs."""
        return self.start + epochs * self.epoch


def measure(jobs: Sequence[Job], slots: Sequence[Slot]) -> list[Times]:
    """Measure the time of each job by a few steps in a process of its own, one in each slot at a time.

    Raises:
        ValueError: a job that the trainer cannot run.
    """
    free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)

    def one(job: Job) -> Times:
        slot, began = free.get(), time.perf_counter()
        try:
            with tempfile.TemporaryDirectory() as unused:
                words = [*job.command(Path(unused)), "--dry-run"]
                environment = {**os.environ, **slot.environment}
                done = subprocess.run(words, env=environment, capture_output=True, text=True)
        finally:
            free.put(slot)
        said = done.stderr.strip().splitlines()[-1:]
        expect(done.returncode == 0, "mixers", job.model, f"a model that trains, not {said}")
        epoch = json.loads(done.stdout.splitlines()[-1])["seconds_per_epoch"]
        return Times(time.perf_counter() - began, epoch)

    with ThreadPoolExecutor(len(slots)) as pool:
        return list(pool.map(one, jobs))


def epochs_within(minutes: float, times: Sequence[Times], workers: int) -> int:
    """Return how many epochs all jobs can train within this time.

    Raises:
        ValueError: not even one.
    """
    starts, each = sum(t.start for t in times), sum(t.epoch for t in times)
    least = (starts + each) / workers / 60
    expected = f"at least {least:.1f}: the time of one epoch of these {len(times)} models"
    expect(minutes >= least, "minutes", minutes, expected)
    return int((minutes * 60 * workers - starts) / each)
