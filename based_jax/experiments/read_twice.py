"""Study what repeating the context and asking first do for recall ("Just read twice", 2407.05483).

Two of many values are asked for. The forms of a row:

    once                 context, queries
    twice                context, context, queries
    asked first, once    questions, context, queries
    asked first, twice   questions, context, context, queries        the paper's prompt
"""

from itertools import product

from based_jax.experiments.based_data import TEXTS, zoology_data
from based_jax.experiments.panels import bars
from based_jax.experiments.results import best
from based_jax.experiments.study import make_study, run
from based_jax.experiments.tasks import TaskJob

_TEXTS = TEXTS["read_twice"]
MODELS = [*_TEXTS["models"]]
_DATA = {**_TEXTS["data"], "paper": {**zoology_data("paper"), "d_model": 64, "length": 256, "pairs": 32}}

_LONGER = 40
"""Epochs of a second run of each model at the scale `cpu`, because some have not begun to learn after 10."""


def _jobs(scale: str, families: list[str], epochs: int | None = None) -> list[TaskJob]:
    jobs, longer = [], {"epochs": epochs} if epochs else {}
    for (name, (passes, first)), family in product(_TEXTS["forms"].items(), families):
        form = f"{name}, {epochs} epochs" if epochs else name
        task = f"repeated_context:num_passes={passes}:num_queries=2:asked_first={str(first).lower()}"
        model = ",".join(["base_conv:kernel_size=3", *[_TEXTS["models"][family]] * 2])
        flags = {"task": task, "random_fill": False, "dropout": 0.0, **_DATA[scale], **longer}
        jobs.append(TaskJob(family, form, model, flags, {"form": form}))
    return jobs


STUDY = make_study(
    "read_twice",
    {
        "smoke": _jobs("smoke", ["Based d' 2"]),
        "cpu": [*_jobs("cpu", MODELS), *_jobs("cpu", MODELS, _LONGER)],
        "paper": _jobs("paper", MODELS),
    },
    lambda rows, scale: bars(best(rows), "form", MODELS),
)

if __name__ == "__main__":
    run(STUDY)
