"""Measure what a comparison will train: the sizes of its models, and how long they take."""

import json
import os
import queue
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from based_jax import command
from based_jax.experiments.job import Job
from based_jax.experiments.slots import Slot
from based_jax.training.commands.synthetic import SyntheticConfig, facts_of
from based_jax.validate import expect

Times = tuple[float, float]
"""Seconds to start a job, with its data and compiled programs, and of each epoch."""


def sizes(job: Job) -> str:
    """Return a line about a job's model; flags that the trainer refuses end the process, with status 2."""
    settings = command.parse(SyntheticConfig, job.arguments, prog="based-jax compare")
    found, _ = facts_of(settings), settings.sweep
    size = found["state_size"]
    state = "no state" if size is None else f"{4 * size:,} bytes of state"
    return f"{job.family}, {job.setting}: {found['parameters']:,} parameters, {state}"


def measure(jobs: Sequence[Job], slots: Sequence[Slot]) -> list[Times]:
    """Measure each job by a few steps in a process of its own, one in each slot at a time.

    Raises:
        ValueError: a job that the trainer cannot run.
    """
    free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)

    def one(job: Job) -> Times:
        slot, began = free.get(), time.perf_counter()
        words = [*job.command(Path("unused")), "--dry-run"]
        environment = {**os.environ, **slot.environment}
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        free.put(slot)
        last = done.stderr.strip().splitlines()[-1:]
        expect(done.returncode == 0, "mixers", job.model, f"a model that trains, not {last}")
        epoch = json.loads(done.stdout.splitlines()[-1])["seconds_per_epoch"]
        return time.perf_counter() - began, epoch

    with ThreadPoolExecutor(len(slots)) as pool:
        return list(pool.map(one, jobs))


def minutes_of(times: Sequence[Times], epochs: int, workers: int) -> float:
    """Return how long so many processes at once train all jobs."""
    return sum(start + epochs * epoch for start, epoch in times) / workers / 60


def epochs_within(minutes: float, times: Sequence[Times], workers: int) -> int:
    """Return how many epochs all jobs can train within this time; ValueError: not even one."""
    expected = f"at least {minutes_of(times, 1, workers):.1f}: the time of one epoch of {len(times)} models"
    starts, each = map(sum, zip(*times, strict=True))
    epochs = int((minutes * 60 * workers - starts) / each)
    expect(epochs >= 1, "minutes", minutes, expected)
    return epochs
