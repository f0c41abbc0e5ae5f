"""Study what repeating the context and asking first do for recall ("Just read twice", 2407.05483).

``based-jax experiments read-twice --scale smoke|cpu|paper --out DIR``

Two of many values are asked for. The forms of a row:

    once                 context, queries
    twice                context, context, queries
    asked first, once    questions, context, queries
    asked first, twice   questions, context, context, queries        the paper's prompt
"""

from itertools import product
from typing import Any

from based_jax.experiments.job import recipe
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, Study, run
from based_jax.experiments.tasks import TaskJob
from based_jax.plot import Bars

FORMS = {
    "once": (1, False),
    "twice": (2, False),
    "asked first, once": (1, True),
    "asked first, twice": (2, True),
}
"""Passes of the context, and whether the questions come before it."""

_SHORT = "base_conv:kernel_size=3"
_LINEAR = "linear_attention:num_heads=1:feature_dim={}"
MODELS = {
    "Attention": "attention:num_heads=1:rotary_fraction=0.0",
    "Based d' 2": _LINEAR.format(2),
    "Based d' 4": _LINEAR.format(4),
}
"""Two layers of each, after a short convolution: the first can find what is asked for, and the second
can store it."""

_SMALL: dict[str, Any] = {"vocab_size": 64, "length": 40, "pairs": 8, "test_examples": 1024, "batch_size": 64}
_DATA: dict[str, dict[str, Any]] = {
    "smoke": {**_SMALL, "d_model": 16, "examples": 256, "epochs": 1, "learning_rates": "1e-2"},
    "cpu": {**_SMALL, "d_model": 32, "examples": 8192, "epochs": 10, "learning_rates": "1e-2"},
    "paper": {**recipe("paper"), "d_model": 64, "length": 256, "pairs": 32},
}


_LONGER = 40
"""Epochs of a second run of each model at the scale `cpu`, because some have not begun to learn after 10."""


def _jobs(scale: str, families: list[str], epochs: int | None = None) -> list[TaskJob]:
    jobs, longer = [], {"epochs": epochs} if epochs else {}
    for (name, (passes, first)), family in product(FORMS.items(), families):
        form = f"{name}, {epochs} epochs" if epochs else name
        task = f"repeated_context:num_passes={passes}:num_queries=2:asked_first={str(first).lower()}"
        model = ",".join([_SHORT, MODELS[family], MODELS[family]])
        flags = {"task": task, "random_fill": False, "dropout": 0.0, **_DATA[scale], **longer}
        jobs.append(TaskJob(family, form, model, flags, {"form": form}))
    return jobs


def _panels(rows: Rows, scale: str) -> list[Bars]:
    del scale
    forms: dict[str, dict[str, float]] = {}
    for row in best(rows):
        forms.setdefault(row["form"], {})[row["family"]] = row["accuracy"]
    return [Bars(form, "accuracy", values, "", (0.0, 1.0)) for form, values in forms.items()]


STUDY = Study(
    name="read_twice",
    title="Recall of two of many values, by the form of the prompt",
    source="Just read twice (2407.05483)",
    jobs={
        "smoke": _jobs("smoke", ["Based d' 2"]),
        "cpu": [*_jobs("cpu", list(MODELS)), *_jobs("cpu", list(MODELS), _LONGER)],
        "paper": _jobs("paper", list(MODELS)),
    },
    about={
        "paper": "No published grid: 32 pairs in 256 tokens, width 64, the recipe of Zoology's studies",
        "cpu": "8 pairs in 40 tokens, width 32, 10 or 40 epochs of 8192 examples, one learning rate and seed",
        "smoke": "Not a result, a check that everything runs: one epoch of 256 examples",
    },
    panels=_panels,
    columns=4,
    notes=("The paper has no figure of this kind; its tables are of pretrained language models.",),
)

if __name__ == "__main__":
    run(STUDY)
