"""Study recall by width: Zoology, Figure 2, mixers above and input-dependent variants of BaseConv below."""

from collections.abc import Mapping, Sequence
from itertools import product

from based_jax.experiments.job import TEXTS, Job, zoology_data
from based_jax.experiments.results import best, lines, published
from based_jax.experiments.study import Rows, make_study, run
from based_jax.plot import Panel
from based_jax.published import number, table

_TEXTS = TEXTS["mqar_width"]
_BELOW: dict[str, str] = _TEXTS["below"]
PAIRS: dict[int, int] = dict(_TEXTS["sizes"]["pairs"])
WIDTHS = (64, 128, 256, 512)
_X_LABEL = "model width d"
_LAYERS = {"paper": 4, "cpu": 2, "smoke": 2}
"""Layers of all models but attention, which has two; at the smaller scales all have."""


def _models(count: int) -> dict[str, str]:
    """Return the layers of each family, with braces for the length and the pairs."""
    found: dict[str, str] = {}
    for family, layers in _TEXTS["above"].items():
        found[family] = ",".join(layers if family == "Attention" else layers * (count // len(layers)))
    convolutions = _TEXTS["above"]["BaseConv"] * count
    return found | {family: ",".join([*convolutions[: count - 1], last]) for family, last in _BELOW.items()}


def published_points() -> dict[int, dict[str, list[tuple[float, float]]]]:
    """Return model width and accuracy by length and family, from the paper's figure."""
    points: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for row in table("zoology_figure_2").rows:
        line = [(float(width), number(row, str(width))) for width in WIDTHS]
        points.setdefault(int(number(row, "length")), {})[str(row["model"])] = line
    return points


def _jobs(scale: str, lengths: Mapping[int, int], widths: Sequence[int]) -> list[Job]:
    found, models = [], _models(_LAYERS[scale])
    for (length, pairs), (family, layers), width in product(lengths.items(), models.items(), widths):
        facts, shared = {"length": length, "pairs": pairs}, zoology_data(scale, family)
        batch = dict(_TEXTS["sizes"]["batch"])[length] if scale == "paper" else shared["batch_size"]
        how = {"random_fill": False, "positions": family == "Attention", "batch_size": batch}
        flags = {"d_model": width, **facts, **how, **shared, "batch_size": batch}
        setting = f"{length} tokens, {pairs} pairs, d {width}"
        found.append(Job(family, setting, layers.format(**facts), flags, facts))
    return found


def _panels(rows: Rows, scale: str) -> list[Panel]:
    chosen = best(rows)
    lengths = sorted({(row["length"], row["pairs"]) for row in chosen})
    above = dict.fromkeys(row["family"] for row in chosen if row["family"] not in _BELOW)  # and added ones
    panels = []
    for families, half in ((above, ""), (_BELOW, ", input-dependent")):
        for length, pairs in lengths:
            shown = (*families, "Attention", "BaseConv")
            here = [row for row in chosen if row["length"] == length and row["family"] in shown]
            drawn = lines(here, lambda row: row["d_model"])
            if not half and scale == "paper":
                drawn += published(published_points()[length])
            widths = sorted({row["d_model"] for row in here})
            panels.append(Panel(f"{length} tokens, {pairs} pairs{half}", _X_LABEL, drawn, ticks=widths))
    if scale != "paper":
        for length, families in published_points().items():
            title = f"the paper's: {length} tokens, {PAIRS[length]} pairs"
            panels.append(Panel(title, _X_LABEL, published(families), ticks=WIDTHS))
    return panels


STUDY = make_study(
    "mqar_width",
    {
        "smoke": _jobs("smoke", {32: 4}, (32,)),
        "cpu": _jobs("cpu", {32: 4}, (16, 32, 64)),
        "paper": _jobs("paper", PAIRS, WIDTHS),
    },
    _panels,
)

if __name__ == "__main__":
    run(STUDY)
