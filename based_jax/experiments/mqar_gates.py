"""Study what late learners need in order to recall: steps, examples, learning rates, width.

All training examples have the fewest pairs of these studies. For gated convolutions (H3 and Hyena) and the
feature map AllPoly one setting changes at a time: steps, examples, learning rate, width. The others have more
steps only.
"""

from itertools import chain, product
from operator import itemgetter

from based_jax.experiments.job import DATA, TEXTS, Job
from based_jax.experiments.results import lines
from based_jax.experiments.study import Rows, make_study, run
from based_jax.plot import Panel

_TEXTS = TEXTS["mqar_gates"]
_RATE = "0.01"


def _jobs(scale: str) -> list[Job]:
    data = _TEXTS["data"][scale]
    base, own = data["epochs"], data["width"]
    few = 2 * base // 3
    changes = (  # width, epochs, factor of the examples, learning rates
        (own, 4 * base, 1, _RATE),
        (own, few, 3, _RATE),  # half as many steps as in the line above
        (own, base, 1, "0.003162,0.01,0.03162"),
        (2 * own, base, 1, _RATE),
    )
    jobs = []
    families: dict[str, str] = _TEXTS["families"]
    more_steps: dict[str, str] = _TEXTS["more_steps"]
    planned = chain(product(changes, families.items()), product(changes[:1], more_steps.items()))
    for (width, epochs, factor, learning_rates), (family, model) in planned:
        tokens, pairs, examples = data["train"]
        setting = f"d {width}, {epochs} epochs" + (f" of {factor} times the examples" if factor > 1 else "")
        train = f"{tokens}:{pairs}:{factor * examples}"
        flags = {"d_model": width, **DATA[scale], "train": train, "test": data["test"], "epochs": epochs}
        flags |= {"learning_rates": learning_rates}
        facts = {"planned_epochs": epochs, "examples": factor * examples}
        layers = model.format(features=data["features"], width=width)
        jobs.append(Job(family, setting, layers, flags, facts))
    return jobs


def _panels(rows: Rows, scale: str) -> list[Panel]:
    """Draw the accuracy with the fewest pairs over each of three settings, the others at their base."""
    data = _TEXTS["data"][scale]
    fewest = data["fewest"]
    base = {"planned_epochs": data["epochs"], "learning_rate": float(_RATE), "d_model": data["width"]}
    rows = [row for row in rows if row["examples"] == data["train"][2]]
    shown = [
        {**row, "accuracy": row["slices"]["num_pairs"].get(fewest, 0.0)} for row in rows if "slices" in row
    ]
    axes = {"planned_epochs": "epochs", "learning_rate": "learning rate", "d_model": "model width d"}
    panels = []
    for axis, x_label in axes.items():
        fixed = {name: value for name, value in base.items() if name != axis}
        of_axis = [row for row in shown if all(row[name] == value for name, value in fixed.items())]
        ticks = sorted({row[axis] for row in of_axis})
        drawn = lines(of_axis, itemgetter(axis))
        recall, how = f"recall with {fewest} pairs", {"x_tick": "{:g}".format, "ticks": ticks}
        panels.append(Panel(f"by {x_label}", x_label, drawn, recall, **how))
    return panels


STUDY = make_study("mqar_gates", {scale: _jobs(scale) for scale in ("smoke", "cpu", "paper")}, _panels)

if __name__ == "__main__":
    run(STUDY)
