"""Study which mixers learn the synthetic tasks other than MQAR (Zoology's code).

``based-jax experiments tasks --scale smoke|cpu|paper --out DIR``
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from based_jax.experiments.based_data import TEXTS
from based_jax.experiments.job import Job
from based_jax.experiments.panels import bars
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, Study, make_study, run
from based_jax.plot import Bars


@dataclass(frozen=True)
class TaskJob(Job):
    """A model and a task; `model` is its layers."""

    trainer = (sys.executable, "-m", "based_jax", "train", "synthetic")

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory."""
        return ["--layers", self.model, *super().arguments[2:]]


def task_flags(task: str, scale: str, texts: Mapping[str, Any] = TEXTS["tasks"]) -> dict[str, Any]:
    """Return the trainer's flags of a task at the scales `cpu` and `smoke`."""
    return {"task": task, **texts["small"][task], **texts["shared"][scale]}


def study_of_tasks(name: str) -> Study:
    """Return the study that trains each of its models on each of its tasks, all of them in studies.toml."""
    texts = TEXTS[name]
    models: Mapping[str, str] = texts["models"]

    def jobs(
        task: str, setting: str, flags: Mapping[str, Any], features: int = 8, left: int = 3
    ) -> list[TaskJob]:
        short = "" if task == "stacked" else "base_conv:kernel_size=3,"
        layers = {
            family: short + last.format(features=features, left=left) for family, last in models.items()
        }
        return [TaskJob(family, setting, model, flags) for family, model in layers.items()]

    def small(scale: str, tasks: Sequence[str]) -> list[TaskJob]:
        return [job for task in tasks for job in jobs(task, task, task_flags(task, scale, texts))]

    def paper(task: str) -> list[TaskJob]:
        named = texts["small"][task].get("task", task)
        kind = named.partition(":")[0]
        flags = {"recipe": f"recipes/synthetic/{kind.replace('_', '-')}.toml"}
        flags |= {} if kind == task else {"task": named}
        lengths = texts.get("circuits", {}).get(task)
        if lengths is None:
            return jobs(task, task, flags, 16, 63)
        return [
            job
            for length in lengths
            for job in jobs(task, f"{task}, {length} tokens", {**flags, "length": length}, 16, 63)
        ]

    def panels(rows: Rows, scale: str) -> list[Bars]:
        del scale
        return bars(best(rows), "setting", [*models])

    cpu = small("cpu", [*texts["small"]])
    for more in texts.get("followed_up", ()):
        task = more["task"]
        flags = {**task_flags(task, "cpu", texts), **more["flags"]}
        cpu += jobs(task, f"{task}, {more['change']}", flags)
    grids = {"smoke": small("smoke", texts["smoke"]), "cpu": cpu}
    return make_study(
        name, {**grids, "paper": [job for task in texts["small"] for job in paper(task)]}, panels
    )


STUDY = study_of_tasks("tasks")

if __name__ == "__main__":
    run(STUDY)
