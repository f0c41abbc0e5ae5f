"""Study recall by the window, alone and after Taylor linear attention: Based, Figure 1, centre."""

from collections.abc import Iterable

from based_jax.experiments.job import ONE_RATE, TEXTS, Job
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, make_study, run
from based_jax.plot import Line, Panel

LINEAR, SLIDING, BOTH = "linear attention alone", "sliding window alone", "both"
NO_WINDOW = "both, without the window"
"""The paper's figure does not have it: convolution and linear attention, as in `mqar_tradeoff`."""
_CONV, _SHORT = "base_conv:kernel_size=3", "linear_attention:feature_dim={}"

_DATA = {**ONE_RATE, "paper": {**ONE_RATE["paper"], **TEXTS["mqar_window"]["paper_data"]}}


def _jobs(scale: str, d_model: int, feature_dim: int, windows: Iterable[int]) -> list[Job]:
    linear = _SHORT.format(feature_dim)
    flags = {"d_model": d_model, **_DATA[scale]}
    jobs = [
        Job(LINEAR, f"d' {feature_dim}", f"{linear},{linear}", flags, {"window": 0}),
        Job(NO_WINDOW, f"d' {feature_dim}", f"{_CONV},{linear}", flags, {"window": 0}),
    ]
    for window in windows:
        slide = f"sliding_window:left={window - 1}"
        for family, model in ((SLIDING, f"{_CONV},{slide}"), (BOTH, f"{_CONV},{linear},{slide}")):
            jobs.append(Job(family, f"window {window}", model, flags, {"window": window}))
    return jobs


def _panels(rows: Rows, scale: str) -> list[Panel]:
    chosen = best(rows)
    windows = sorted({row["window"] for row in chosen if row["window"]})
    by_family: dict[str, list[tuple[float, float]]] = {}
    for row in chosen:
        # A model without a window is a horizontal line.
        sizes = [row["window"]] if row["window"] else windows
        by_family.setdefault(row["family"], []).extend((size, row["accuracy"]) for size in sizes)
    drawn = [Line(family, points) for family, points in by_family.items()]
    return [Panel(f"trained here, --scale {scale}", "window (tokens)", drawn, ticks=windows)]


STUDY = make_study(
    "mqar_window",
    {
        "smoke": _jobs("smoke", 32, 8, (4, 16)),
        "cpu": _jobs("cpu", 32, 8, (4, 8, 16, 32, 64)),
        "paper": _jobs("paper", 128, 16, [2**n for n in range(3, 11)]),
    },
    _panels,
)

if __name__ == "__main__":
    run(STUDY)
