"""Recall by feature map of linear attention, against state and parameters: Based, Figure 3.

``python -m based_jax.experiments.mqar_feature_maps --scale smoke|cpu|paper --out DIR``
"""

from collections.abc import Iterable

from based_jax.experiments.based_data import ABOUT, DATA, SLICE
from based_jax.experiments.job import Job
from based_jax.experiments.panels import Panel, lines, published, state_bytes
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, Study, run

TAYLOR = "Taylor"
MAPS = {
    "ReLU": "relu",
    "PosELU": "pos_elu",
    "Square": "square",
    "AllPoly": "all_poly",
    "CosFormer": "cosformer",
    "Identity": "identity",
    "Performer": "performer",
}
"""Name in the figure and here; their feature_dim is the model's width, as in the paper."""

WIDTHS = (64, 128, 192, 256, 320, 384, 448, 512)

_ACCURACY = {
    TAYLOR: (0.80, 0.94, 0.975, 0.988, 0.988, 0.99, 0.99, 0.99),
    "ReLU": (0.24, 0.91, 0.945, 0.965, 0.975, 0.985, 0.98, 0.975),
    "PosELU": (0.245, 0.82, 0.938, 0.943, 0.95, 0.963, 0.967, 0.96),
    "AllPoly": (0.075, 0.745, 0.923, 0.95, 0.94, 0.953, 0.945, 0.945),
    "Square": (0.045, 0.41, 0.69, 0.867, 0.914, 0.943, 0.938, 0.94),
    "CosFormer": (0.163, 0.605, 0.765, 0.805, 0.86, 0.877, 0.895, 0.914),
    "Identity": (0.0, 0.0, 0.25, 0.68, 0.63, 0.645, 0.575, 0.69),
    "Performer": (0.02,) * 8,
}
"""With 256 pairs in 1024 tokens, by WIDTHS; read from an early figure of the authors' repository."""


def _features(family: str, d_model: int) -> int:
    """Width of the features that the paper's state counts."""
    return {TAYLOR: 1 + 24 + 24 * 25 // 2, "CosFormer": 2 * d_model}.get(family, d_model)


PUBLISHED = {
    family: [
        (4.0 * ((width + 1) * _features(family, width) + 3 * width), accuracy)
        for width, accuracy in zip(WIDTHS, values, strict=True)
    ]
    for family, values in _ACCURACY.items()
}
"""State in bytes (spec of Based, 5, and three tokens of the short convolution), and accuracy."""


def _jobs(scale: str, widths: Iterable[int], taylor: Iterable[int], maps: Iterable[str]) -> list[Job]:
    widths = tuple(widths)
    longest = max(int(part.split(":")[0]) for part in DATA[scale]["test"].split(","))

    def job(family: str, width: int, model: str, setting: str) -> Job:
        flags = {"d_model": width, **DATA[scale]}
        return Job(family, f"d {width}, {setting}", model, flags)

    found = [
        job(TAYLOR, width, f"based:feature_dim={dim}", f"d' {dim}") for dim in taylor for width in widths
    ]
    for family in maps:
        options = f":max_length={longest}" if family == "CosFormer" else ""
        found += [
            job(
                family, width, f"based:feature_map={MAPS[family]}:feature_dim={width}{options}", f"d' {width}"
            )
            for width in widths
        ]
    return found


def _panels(rows: Rows, scale: str) -> list[Panel]:
    chosen = best(rows, SLICE[scale])
    pairs = f"accuracy with {SLICE[scale][1]} pairs"
    return [
        Panel(f"here, --scale {scale}", "state", lines(chosen, state_bytes), pairs, is_bytes=True),
        Panel("the paper's, 256 pairs", "state", published(PUBLISHED), is_bytes=True),
        Panel("here", "parameters", lines(chosen, lambda row: row["parameters"]), pairs),
    ]


STUDY = Study(
    name="mqar_feature_maps",
    title="Recall by feature map of linear attention",
    source="Based, Figure 3",
    jobs={
        "smoke": _jobs("smoke", (32,), (8,), ("ReLU", "Performer")),
        "cpu": _jobs("cpu", (32, 64), (8, 16), MAPS),
        "paper": _jobs("paper", WIDTHS, (16, 24), MAPS),
    },
    about=ABOUT,
    panels=_panels,
    notes=(
        "CosFormer's positions are scaled by the longest test, not by each sequence as in the authors' "
        "code, so that it can decode. The paper's state counts Performer's width, not its 256 features; ours "
        "counts the features.",
    ),
)

if __name__ == "__main__":
    run(STUDY)
