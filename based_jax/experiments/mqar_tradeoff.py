"""Recall against the size of the state: Based, Figure 2, and Figure 8 with the sparse approximations.

``python -m based_jax.experiments.mqar_tradeoff --scale smoke|cpu|paper --out DIR``
"""

from collections.abc import Iterable

from based_jax.experiments.based_data import ABOUT, DATA
from based_jax.experiments.job import Job
from based_jax.experiments.panels import STATE_AXIS, Panel, lines, published, state_bytes
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, Study, run
from based_jax.published import number, table

WIDTHS = (64, 128, 256)
FIGURE_8 = ("ScatterBrain", "BigBird", "Nystromformer")


def published_points() -> dict[str, list[tuple[float, float]]]:
    """State in bytes and accuracy by family, as the paper's figure has them, of the families trained here."""
    points: dict[str, list[tuple[float, float]]] = {job.family: [] for job in STUDY.jobs["paper"]}
    for row in table("based_figure_2").rows:
        if row["model"] in points:
            points[str(row["model"])].append((number(row, "state_bytes"), number(row, "accuracy")))
    return {family: line for family, line in points.items() if line}


def _job(scale: str, family: str, d_model: int, model: str, setting: str = "") -> Job:
    setting = ", ".join(filter(None, (f"d {d_model}", setting)))
    return Job(family, setting, model, {"d_model": d_model, **DATA[scale]})


def _by_width(scale: str, widths: Iterable[int], **families: str) -> list[Job]:
    return [
        _job(scale, family.replace("_", " "), width, model)
        for family, model in families.items()
        for width in widths
    ]


def _based(scale: str, widths: Iterable[int], feature_dims: Iterable[int]) -> list[Job]:
    return [
        _job(scale, "Based", width, f"based:feature_dim={dim}", f"d' {dim}")
        for width in widths
        for dim in feature_dims
    ]


def _windows(scale: str, width: int, windows: Iterable[int]) -> list[Job]:
    return [
        _job(scale, "Sliding window", width, f"sliding_window:left={window - 1}", f"window {window}")
        for window in windows
    ]


def _mambas(scale: str, widths: Iterable[int], state_sizes: Iterable[int]) -> list[Job]:
    return [
        _job(scale, family, width, f"{mixer}:d_state={size}", f"d_state {size}")
        for family, mixer in (("Mamba", "mamba"), ("Mamba-2", "mamba2"))
        for width in widths
        for size in state_sizes
    ]


def _paper() -> list[Job]:
    powers = [2**n for n in range(3, 11)]
    recurrent = {
        "GLA": "gla",
        "DeltaNet": "delta_net",
        "Gated_DeltaNet": "gated_delta_net",
        "RWKV-7": "rwkv7",
    }
    return [
        *_by_width("paper", (64, 128), Attention="attention"),
        *_based("paper", (48, 64, 128), (8, 16, 24)),
        *_windows("paper", 128, powers),
        *_mambas("paper", WIDTHS, (8, 16, 24)),
        *_by_width("paper", WIDTHS, **recurrent, H3="h3", Hyena="hyena"),
        *[
            _job(
                "paper", "ScatterBrain", width, f"scatterbrain:left={window}:feature_dim={features}",
                f"window {window}, {features} features",
            )
            for width in WIDTHS
            for window in (4, 16, 64, 256, 1024)
            for features in (32, 64, 128)
        ],
        *[
            _job("paper", "BigBird", 64, f"bigbird:block_size={size}", f"blocks of {size}")
            for size in powers[:5]
        ],
        *[
            _job("paper", "Nystromformer", 128, f"nystrom:num_landmarks={number}", f"{number} landmarks")
            for number in powers[1:7]
        ],
    ]  # fmt: skip


def _cpu() -> list[Job]:
    return [
        *_by_width("cpu", (32, 64), Attention="attention"),
        *_based("cpu", (32, 64), (4, 8, 16)),
        *_windows("cpu", 64, (4, 8, 16, 32, 64)),
        *_by_width("cpu", (32, 64), H3="h3", Hyena="hyena"),
    ]


def _smoke() -> list[Job]:
    return [
        *_by_width("smoke", (32,), Attention="attention"),
        *_based("smoke", (32,), (4, 8)),
        *_windows("smoke", 32, (4, 16)),
        *_by_width("smoke", (32,), H3="h3", Hyena="hyena"),
    ]


def _panels(rows: Rows, scale: str) -> list[Panel]:
    ours = lines(best(rows), state_bytes, frontier=True)
    figure_2 = [line for line in ours if line.family not in FIGURE_8]
    theirs = published(published_points(), frontier=True)
    return [
        Panel(f"trained here, --scale {scale}", lines=figure_2, **STATE_AXIS),
        Panel("the paper's models (Figure 2), at the paper's scale", lines=theirs, **STATE_AXIS),
        Panel(
            "trained here, with those of Figure 8",
            lines=ours if len(ours) > len(figure_2) else [],
            **STATE_AXIS,
        ),
    ]


STUDY = Study(
    name="mqar_tradeoff",
    title="Recall against the size of the state",
    source="Based, Figures 2 and 8",
    jobs={"smoke": _smoke(), "cpu": _cpu(), "paper": _paper()},
    about=ABOUT,
    panels=_panels,
    notes=(
        "A line joins the models that recall more than every smaller one of their family. The paper's "
        "numbers are read from the figure of its authors' repository.",
    ),
)

if __name__ == "__main__":
    run(STUDY)
