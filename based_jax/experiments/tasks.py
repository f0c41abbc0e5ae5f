"""Study which mixers learn the synthetic tasks other than MQAR (Zoology's code).

``based-jax experiments tasks --scale smoke|cpu|paper --out DIR``
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from based_jax.experiments.job import Job
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, Study, run
from based_jax.plot import Bars

MODELS = {
    "Attention": "attention",
    "Based": "based:feature_dim={features}",
    "Sliding window": "sliding_window:left={left}",
    "BaseConv": "base_conv:kernel_size=-1",
}
"""Layers by family; before each there is a short convolution, as in the papers, except for stacked MQAR."""

_SHORT = "base_conv:kernel_size=3"


@dataclass(frozen=True)
class TaskJob(Job):
    """A model and a task; `model` is its layers."""

    trainer = (sys.executable, "-m", "based_jax", "train", "synthetic")

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory."""
        return ["--layers", self.model, *super().arguments[2:]]


_RECALL = {"random_fill": False, "epochs": 16}
_CIRCUIT = {"mlp": "gated", "epochs": 8}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "compositional": {"vocab_size": 27, "length": 24, "pairs": 4, **_RECALL},
    "forgetting": {"task": "forgetting:num_updates=2", "vocab_size": 24, "length": 20, "pairs": 4, **_RECALL},
    "repeated_context": {"vocab_size": 26, "length": 24, "pairs": 4, **_RECALL},
    "stacked": {"task": "stacked:embedding_dim=32", "vocab_size": 32, "pairs": 8, "epochs": 16},
    "cumulative_parity": {"length": 15, **_CIRCUIT},
    "cumulative_majority": {"length": 15, **_CIRCUIT},
    "vocab_majority": {"vocab_size": 9, "length": 16, **_CIRCUIT},
    "single_query": {"vocab_size": 25, "length": 24, "pairs": 8, "epochs": 16},
    "majority": {"length": 16, "epochs": 8},
    "parity": {"length": 9, **_CIRCUIT},
}
"""Flags of each task at the scales `cpu` and `smoke`."""

_FOLLOWED_UP: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    ("single_query", "64 epochs", {"epochs": 64, "learning_rates": "3e-3,1e-2"}),
    ("parity", "64 epochs", {"epochs": 64, "learning_rates": "1e-3,3e-3,1e-2"}),
    ("parity", "4 bits, d 128", {"length": 5, "epochs": 32, "d_model": 128, "learning_rates": "3e-4,1e-3"}),
)
"""Task, its change and flags of further jobs at the scale `cpu`: tasks that few mixers have learned."""

_LOOP: Mapping[str, Mapping[str, Any]] = {
    "cpu": {"d_model": 32, "examples": 4096, "test_examples": 512, "batch_size": 64},
    "smoke": {"d_model": 16, "examples": 512, "test_examples": 128, "epochs": 1, "batch_size": 64},
}
_HOW: Mapping[str, Any] = {"dropout": 0.0, "learning_rates": "1e-2", "log_every": 128}

CIRCUITS: Mapping[str, Sequence[int]] = {
    "parity": (4, 8, 16, 32, 64, 128),
    "cumulative_parity": (3, 7, 15, 31, 63, 127),
    "cumulative_majority": (4, 16, 32, 64, 128),
    "vocab_majority": (16, 32, 64, 128),
}
"""Lengths at the scale `paper`, with a model for each."""


def task_flags(task: str, scale: str) -> dict[str, Any]:
    """Return the trainer's flags of a task at the scales `cpu` and `smoke`."""
    return {"task": task, **SMALL[task], **_LOOP[scale], **_HOW}


def _layers(task: str, family: str, features: int, left: int) -> str:
    last = MODELS[family].format(features=features, left=left)
    return last if task == "stacked" else f"{_SHORT},{last}"


def _small(scale: str, tasks: Sequence[str]) -> list[Job]:
    """Return the jobs of a small scale, task by task."""
    jobs: list[Job] = []
    for task, family in product(tasks, MODELS):
        jobs.append(TaskJob(family, task, _layers(task, family, 8, 3), task_flags(task, scale)))
    for (task, change, more), family in product(_FOLLOWED_UP if scale == "cpu" else (), MODELS):
        setting, model = f"{task}, {change}", _layers(task, family, 8, 3)
        jobs.append(TaskJob(family, setting, model, {**task_flags(task, scale), **more}))
    return jobs


def _paper() -> Iterator[Job]:
    """Yield the jobs of the recipes, and of the circuits' lengths."""
    for task, family in product(SMALL, MODELS):
        recipe = {"recipe": f"recipes/synthetic/{task.replace('_', '-')}.toml"}
        model = _layers(task, family, 16, 63)
        lengths = CIRCUITS.get(task)
        if lengths is None:
            yield TaskJob(family, task, model, recipe)
            continue
        for length in lengths:
            yield TaskJob(family, f"{task}, {length} tokens", model, {**recipe, "length": length})


def _panels(rows: Rows, scale: str) -> list[Bars]:
    del scale
    settings: dict[str, dict[str, float]] = {}
    for row in best(rows):
        settings.setdefault(row["setting"], {})[row["family"]] = row["accuracy"]
    return [
        Bars(
            setting.replace("_", " "),
            "accuracy",
            {family: values[family] for family in sorted(values, key=_order)},
            "",
            (0.0, 1.0),
        )
        for setting, values in settings.items()
    ]


def _order(family: str) -> int:
    return list(MODELS).index(family) if family in MODELS else len(MODELS)


STUDY = Study(
    name="tasks",
    title="Synthetic tasks other than MQAR",
    source="Zoology's code",
    jobs={
        "smoke": _small("smoke", ("forgetting", "stacked", "cumulative_parity")),
        "cpu": _small("cpu", tuple(SMALL)),
        "paper": list(_paper()),
    },
    about={
        "paper": "The settings of the authors' code, recipes/synthetic, and their lengths of the circuits",
        "cpu": "A small version: width 32, 9 to 24 tokens, 8 to 64 epochs of 4096 examples, unless named",
        "smoke": "Not a result, a check that everything runs: one epoch of 512 examples",
    },
    panels=_panels,
    like="attention",
    columns=4,
    notes=("A short convolution precedes every mixer, except in stacked MQAR, whose models have one layer.",),
)

if __name__ == "__main__":
    run(STUDY)
