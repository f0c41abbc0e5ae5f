"""Study what mixers need in order to recall that recall little in Based's studies at a small scale.

All training examples have the fewest pairs of these studies. For gated convolutions (H3 and Hyena) and the
feature map AllPoly one setting changes at a time: steps, examples, learning rate, width. The others have more
steps only.

``based-jax experiments mqar-gates --scale smoke|cpu|paper --out DIR``
"""

from itertools import product
from operator import itemgetter

from based_jax.experiments.based_data import DATA
from based_jax.experiments.job import Job, rates, segments
from based_jax.experiments.panels import Panel, lines
from based_jax.experiments.study import Rows, Study, run

FAMILIES = {
    "H3": "h3",
    "Hyena": "hyena",
    "AllPoly": "based:feature_map=all_poly:feature_dim={width}",
}
"""Families of which one setting changes at a time."""
MORE_STEPS = {
    "Mamba": "mamba:d_state=8:implementation=reference",
    "GLA": "gla",
    "RetNet": "retnet",
    "BaseConv": "base_conv",
    "Gated DeltaNet": "gated_delta_net",
    "RWKV-7": "rwkv7",
    "linear attention alone": ",".join(["linear_attention:feature_dim={features}"] * 2),
}
"""Families that only get more steps; the last one is of `mqar_window`."""
_TRAIN = {"paper": (64, 4, 180_000), "cpu": (32, 4, 24_576), "smoke": (32, 2, 8192)}
_TEST = {"paper": ((64, 4), (64, 8), (64, 16)), "cpu": ((32, 4), (64, 8)), "smoke": ((32, 2), (32, 4))}
_WIDTH = {"paper": 64, "cpu": 32, "smoke": 32}
_FEATURES = {"paper": 16, "cpu": 8, "smoke": 8}
_EPOCHS = {"paper": 32, "cpu": 6, "smoke": 4}
_RATE = "0.01"


def _jobs(scale: str) -> list[Job]:
    base, own, test = _EPOCHS[scale], _WIDTH[scale], segments(*_TEST[scale])
    few = 2 * base // 3
    changes = (  # width, epochs, factor of the examples, learning rates
        (own, 4 * base, 1, _RATE),
        (own, few, 3, _RATE),  # half as many steps as in the line above
        (own, base, 1, rates(-2.5, -1.5, 3)),
        (2 * own, base, 1, _RATE),
    )
    jobs = []
    planned = [*product(changes, FAMILIES.items()), *product(changes[:1], MORE_STEPS.items())]
    for (width, epochs, factor, learning_rates), (family, model) in planned:
        tokens, pairs, examples = _TRAIN[scale]
        setting = f"d {width}, {epochs} epochs" + (f" of {factor} times the examples" if factor > 1 else "")
        data = {"train": segments((tokens, pairs, factor * examples)), "test": test, "epochs": epochs}
        flags = {"d_model": width, **DATA[scale], **data, "learning_rates": learning_rates}
        facts = {"planned_epochs": epochs, "examples": factor * examples}
        layers = model.format(features=_FEATURES[scale], width=width)
        jobs.append(Job(family, setting, layers, flags, facts))
    return jobs


def _panels(rows: Rows, scale: str) -> list[Panel]:
    """Draw the accuracy with the fewest pairs over each of three settings, the others at their base."""
    fewest = str(_TEST[scale][0][1])
    label = f"recall with {fewest} pairs"
    base = {"planned_epochs": _EPOCHS[scale], "learning_rate": float(_RATE), "d_model": _WIDTH[scale]}
    rows = [row for row in rows if row["examples"] == _TRAIN[scale][2]]
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
        panels.append(Panel(f"by {x_label}", x_label, drawn, label, x_tick="{:g}".format, ticks=ticks))
    return panels


STUDY = Study(
    name="mqar_gates",
    title="What late learners need in order to recall",
    source="Based, Figures 1 to 3: its mixers that had not learned to recall",
    jobs={scale: _jobs(scale) for scale in ("smoke", "cpu", "paper")},
    about={
        "paper": "8192 symbols, 4 pairs in 64 tokens, as many examples as in the paper's grid",
        "cpu": "1024 symbols, 4 pairs in 32 tokens, as many examples as in the small grid",
        "smoke": "Not a result, a check that everything runs: 256 symbols, 2 pairs in 32 tokens",
    },
    panels=_panels,
    like="retnet",
)

if __name__ == "__main__":
    run(STUDY)
