"""Study which mixers learn the synthetic tasks other than MQAR (Zoology's code)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from based_jax.experiments.job import TEXTS, Job
from based_jax.experiments.results import bars, best
from based_jax.experiments.study import Study, make_study, run


@dataclass(frozen=True)
class TaskJob(Job):
    """A model and a task; `model` is its layers."""

    trainer = (sys.executable, "-m", "based_jax", "train", "synthetic")

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory."""
        return ["--layers", self.model, *super().arguments[2:]]


STUDY_OF = {task: name for name in ("tasks", "capabilities") for task in TEXTS[name]["small"]}
"""The study that trains a task."""


def task_flags(task: str, scale: str) -> dict[str, Any]:
    """Return the trainer's flags of a task at the scales `cpu` and `smoke`."""
    texts = TEXTS[STUDY_OF[task]]
    return {"task": task, **texts["small"][task], **texts["shared"][scale]}


def study_of_tasks(name: str) -> Study:
    """Return the study that trains each of its models on each of its tasks, all of them in studies.toml."""
    texts = TEXTS[name]
    models: Mapping[str, str] = texts["models"]

    def jobs(task: str, setting: str, flags: Mapping[str, Any], **sizes: int) -> list[TaskJob]:
        short = "" if task == "stacked" else "base_conv:kernel_size=3,"
        sizes = sizes or {"features": 8, "left": 3}
        return [
            TaskJob(family, setting, short + last.format(**sizes), flags) for family, last in models.items()
        ]

    def small(scale: str, tasks: Sequence[str]) -> list[TaskJob]:
        return [job for task in tasks for job in jobs(task, task, task_flags(task, scale))]

    cpu = small("cpu", [*texts["small"]])
    for more in texts.get("followed_up", ()):
        task = more["task"]
        cpu += jobs(task, f"{task}, {more['change']}", {**task_flags(task, "cpu"), **more["flags"]})
    paper: list[TaskJob] = []
    for task, own in texts["small"].items():
        named = own.get("task", task)
        kind = named.partition(":")[0]
        flags = {"recipe": f"recipes/synthetic/{kind.replace('_', '-')}.toml"}
        flags |= {} if kind == task else {"task": named}
        for length in texts.get("circuits", {}).get(task, (0,)):
            setting, more = (f"{task}, {length} tokens", {"length": length}) if length else (task, {})
            paper += jobs(task, setting, {**flags, **more}, features=16, left=63)
    grids = {"smoke": small("smoke", texts["smoke"]), "cpu": cpu, "paper": paper}
    return make_study(name, grids, lambda rows, scale: bars(best(rows), [*models]))


STUDY = study_of_tasks("tasks")

if __name__ == "__main__":
    run(STUDY)
