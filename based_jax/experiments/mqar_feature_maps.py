"""Study recall by feature map of linear attention, against state and parameters: Based, Figure 3."""

from collections.abc import Iterable, Sequence

from based_jax.experiments.job import ONE_RATE, SLICE, TEXTS, Job
from based_jax.experiments.results import STATE_AXIS, best, lines, published
from based_jax.experiments.study import Rows, make_study, run
from based_jax.plot import Panel
from based_jax.published import number, table

TAYLOR = "Taylor"
MAPS: dict[str, str] = TEXTS["mqar_feature_maps"]["maps"]
WIDTHS = (64, 128, 192, 256, 320, 384, 448, 512)


def _features(family: str, d_model: int) -> int:
    """Return the width of the features that the paper's state counts."""
    return {TAYLOR: 1 + 24 + 24 * 25 // 2, "CosFormer": 2 * d_model}.get(family, d_model)


def published_points() -> dict[str, list[tuple[float, float]]]:
    """Return state in bytes (with three tokens of the short convolution) and accuracy by family."""
    points = {}
    for row in table("based_figure_3").rows:
        family = str(row["feature_map"])
        sizes = [4.0 * ((width + 1) * _features(family, width) + 3 * width) for width in WIDTHS]
        accuracies = [number(row, str(width)) for width in WIDTHS]
        points[family] = list(zip(sizes, accuracies, strict=True))
    return points


def _jobs(scale: str, widths: Sequence[int], taylor: Iterable[int], maps: Iterable[str]) -> list[Job]:
    longest = max(int(part.split(":")[0]) for part in ONE_RATE[scale]["test"].split(","))

    def job(family: str, width: int, dim: int, options: str = "") -> Job:
        flags = {"d_model": width, **ONE_RATE[scale]}
        return Job(family, f"d {width}, d' {dim}", f"based{options}", flags)

    found = [job(TAYLOR, width, dim, f":feature_dim={dim}") for dim in taylor for width in widths]
    for family in maps:
        more = f":max_length={longest}" if family == "CosFormer" else ""
        options = f":feature_map={MAPS[family]}:feature_dim={{}}{more}"
        found += [job(family, width, width, options.format(width)) for width in widths]
    return found


def _panels(rows: Rows, scale: str) -> list[Panel]:
    chosen = best(rows, SLICE[scale])
    by_state = lines(chosen, lambda row: row["state_bytes"])
    pairs, theirs = f"recall with {SLICE[scale][1]} pairs", published(published_points())
    sparse = {**STATE_AXIS, "ticks": [2**power for power in (14, 16, 18, 20)]}
    held = {**STATE_AXIS, "x_label": "bytes that the state holds at the longest test"}
    return [
        Panel(f"trained here, --scale {scale}", lines=by_state, y_label=pairs, **held),
        Panel("the paper's models", lines=theirs, y_label="recall with 256 pairs", **sparse),
        Panel("trained here", "parameters", lines(chosen, lambda row: row["parameters"]), pairs),
    ]


STUDY = make_study(
    "mqar_feature_maps",
    {
        "smoke": _jobs("smoke", (32,), (8,), ("ReLU", "Performer")),
        "cpu": _jobs("cpu", (32, 64), (8, 16), MAPS),
        "paper": _jobs("paper", WIDTHS, (16, 24), MAPS),
    },
    _panels,
)

if __name__ == "__main__":
    run(STUDY)
