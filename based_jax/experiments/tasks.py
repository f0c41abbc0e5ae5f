"""Study which mixers learn the synthetic tasks other than MQAR (Zoology's code).

``based-jax experiments tasks --scale smoke|cpu|paper --out DIR``
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from based_jax.experiments.based_data import TEXTS
from based_jax.experiments.job import Job
from based_jax.experiments.panels import bars
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, make_study, run
from based_jax.plot import Bars

_TEXTS = TEXTS["tasks"]
MODELS: dict[str, str] = _TEXTS["models"]
SMALL: dict[str, dict[str, Any]] = _TEXTS["small"]
_SHORT = "base_conv:kernel_size=3"


@dataclass(frozen=True)
class TaskJob(Job):
    """A model and a task; `model` is its layers."""

    trainer = (sys.executable, "-m", "based_jax", "train", "synthetic")

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory."""
        return ["--layers", self.model, *super().arguments[2:]]


def task_flags(task: str, scale: str) -> dict[str, Any]:
    """Return the trainer's flags of a task at the scales `cpu` and `smoke`."""
    return {"task": task, **SMALL[task], **_TEXTS["shared"][scale]}


def _layers(task: str, family: str, features: int, left: int) -> str:
    last = MODELS[family].format(features=features, left=left)
    return last if task == "stacked" else f"{_SHORT},{last}"


def _small(scale: str, tasks: Sequence[str]) -> list[Job]:
    """Return the jobs of a small scale, task by task."""
    jobs: list[Job] = []
    for task, family in product(tasks, MODELS):
        jobs.append(TaskJob(family, task, _layers(task, family, 8, 3), task_flags(task, scale)))
    for more, family in product(_TEXTS["followed_up"] if scale == "cpu" else (), MODELS):
        task, model = more["task"], _layers(more["task"], family, 8, 3)
        flags = {**task_flags(task, scale), **more["flags"]}
        jobs.append(TaskJob(family, f"{task}, {more['change']}", model, flags))
    return jobs


def _paper() -> Iterator[Job]:
    """Yield the jobs of the recipes, and of the circuits' lengths."""
    for task, family in product(SMALL, MODELS):
        recipe = {"recipe": f"recipes/synthetic/{task.replace('_', '-')}.toml"}
        model = _layers(task, family, 16, 63)
        lengths = _TEXTS["circuits"].get(task)
        if lengths is None:
            yield TaskJob(family, task, model, recipe)
            continue
        for length in lengths:
            yield TaskJob(family, f"{task}, {length} tokens", model, {**recipe, "length": length})


def _panels(rows: Rows, scale: str) -> list[Bars]:
    del scale
    return bars(best(rows), "setting", [*MODELS])


STUDY = make_study(
    "tasks",
    {
        "smoke": _small("smoke", ("forgetting", "stacked", "cumulative_parity")),
        "cpu": _small("cpu", tuple(SMALL)),
        "paper": list(_paper()),
    },
    _panels,
)

if __name__ == "__main__":
    run(STUDY)
