"""Study recall against the size of the state: Based, Figure 2, and Figure 8 with sparse approximations.

``based-jax experiments mqar-tradeoff --scale smoke|cpu|paper --out DIR``
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from based_jax.experiments.based_data import ABOUT, CPU_RATE, DATA
from based_jax.experiments.job import Job
from based_jax.experiments.panels import STATE_AXIS, Panel, lines, published, state_bytes
from based_jax.experiments.results import best
from based_jax.experiments.study import Rows, Study, run
from based_jax.published import number, table

WIDTHS = (64, 128, 256)
FIGURE_8 = ("ScatterBrain", "BigBird", "Nystromformer")
_SCATTERBRAIN = "window {}, {} features"


def published_points() -> dict[str, list[tuple[float, float]]]:
    """Return state in bytes and accuracy by family, from the paper's figure, of the families trained here."""
    points: dict[str, list[tuple[float, float]]] = {job.family: [] for job in STUDY.jobs["paper"]}
    for row in table("based_figure_2").rows:
        if row["model"] in points:
            points[str(row["model"])].append((number(row, "state_bytes"), number(row, "accuracy")))
    return {family: line for family, line in points.items() if line}


def of_figure_2(rows: Rows) -> Rows:
    """Return the rows of the families in the paper's figure."""
    shown = published_points()
    return [row for row in rows if row["family"] in shown]


def _grid(
    scale: str,
    family: str,
    widths: Iterable[int],
    model: str,
    setting: str = "",
    values: Iterable[Sequence[int]] = ((),),
) -> list[Job]:
    """Return the jobs of a family; braces in the model and the setting stand for each of the values."""
    return [
        Job(
            family,
            ", ".join(filter(None, (f"d {width}", setting.format(*chosen)))),
            model.format(*chosen),
            {"d_model": width, **DATA[scale]},
        )
        for width, chosen in product(widths, values)
    ]


def _based(scale: str, widths: Iterable[int], dims: Iterable[int]) -> list[Job]:
    return _grid(scale, "Based", widths, "based:feature_dim={}", "d' {}", [(dim,) for dim in dims])


def _windows(scale: str, width: int, windows: Iterable[int]) -> list[Job]:
    values = [(window - 1, window) for window in windows]
    return _grid(scale, "Sliding window", (width,), "sliding_window:left={}", "window {1}", values)


def _small(scale: str, widths: Sequence[int], dims: Iterable[int], windows: Iterable[int]) -> list[Job]:
    return [
        *_grid(scale, "Attention", widths, "attention"),
        *_based(scale, widths, dims),
        *_windows(scale, max(widths), windows),
        *_grid(scale, "H3", widths, "h3"),
        *_grid(scale, "Hyena", widths, "hyena"),
    ]


def _cpu() -> list[Job]:
    """Return Figure 2's lines at a small scale, then those of Figure 8, and three that neither figure has."""
    grid, small = partial(_grid, "cpu"), (32,)
    scatterbrain = "scatterbrain:left={}:feature_dim={}"
    more = [
        # Token by token takes half the time of chunks on a CPU.
        *grid("Mamba", small, "mamba:d_state={}:implementation=reference", "d_state {}", [(8,)]),
        *grid("Mamba-2", small, "mamba2:d_state={}", "d_state {}", [(16,)]),
        *grid("GLA", small, "gla"),
        *grid("DeltaNet", small, "delta_net"),
        *grid("Gated DeltaNet", small, "gated_delta_net"),
        *grid("RWKV-7", small, "rwkv7"),
        *grid("ScatterBrain", small, scatterbrain, _SCATTERBRAIN, [(16, 32)]),
        *grid("BigBird", small, "bigbird:block_size={}:l_max=256", "blocks of {}", [(4,)]),
        *grid("Nystromformer", small, "nystrom:num_landmarks={}:l_max=256", "{} landmarks", [(32,)]),
        *grid("RetNet", small, "retnet"),
        *grid("BaseConv", small, "base_conv"),
        *grid("LongConv", small, "long_conv"),
    ]
    one_rate = [replace(job, flags={**job.flags, "learning_rates": CPU_RATE}) for job in more]
    return [*_small("cpu", (32, 64), (4, 8, 16), (4, 8, 16, 32, 64)), *one_rate]


def _paper() -> list[Job]:
    powers = [2**n for n in range(3, 11)]
    grid = partial(_grid, "paper")
    sizes, sparse = [(8,), (16,), (24,)], list(product((4, 16, 64, 256, 1024), (32, 64, 128)))
    blocks, landmarks = [(size,) for size in powers[:5]], [(number,) for number in powers[1:7]]
    scatterbrain = "scatterbrain:left={}:feature_dim={}"
    return [
        *grid("Attention", (64, 128), "attention"),
        *_based("paper", (48, 64, 128), (8, 16, 24)),
        *_windows("paper", 128, powers),
        *grid("Mamba", WIDTHS, "mamba:d_state={}", "d_state {}", sizes),
        *grid("Mamba-2", WIDTHS, "mamba2:d_state={}", "d_state {}", sizes),
        *grid("GLA", WIDTHS, "gla"),
        *grid("DeltaNet", WIDTHS, "delta_net"),
        *grid("Gated DeltaNet", WIDTHS, "gated_delta_net"),
        *grid("RWKV-7", WIDTHS, "rwkv7"),
        *grid("H3", WIDTHS, "h3"),
        *grid("Hyena", WIDTHS, "hyena"),
        *grid("ScatterBrain", WIDTHS, scatterbrain, _SCATTERBRAIN, sparse),
        *grid("BigBird", (64,), "bigbird:block_size={}", "blocks of {}", blocks),
        *grid("Nystromformer", (128,), "nystrom:num_landmarks={}", "{} landmarks", landmarks),
    ]


def _panels(rows: Rows, scale: str) -> list[Panel]:
    ours = lines(best(rows), state_bytes, frontier=True)
    figure_2 = [line for line in ours if line.family not in FIGURE_8]
    # Figure 8 has the sparse approximations between attention, Based and windows.
    compared = ("Attention", "Based", "Sliding window", *FIGURE_8)
    figure_8 = [line for line in ours if line.family in compared] if len(ours) > len(figure_2) else []
    theirs = published(published_points(), frontier=True)
    return [
        Panel(f"trained here, --scale {scale}", lines=figure_2, **STATE_AXIS),
        Panel("the paper's models (Figure 2), at the paper's scale", lines=theirs, **STATE_AXIS),
        Panel("trained here, sparse approximations (Figure 8)", lines=figure_8, **STATE_AXIS),
    ]


STUDY = Study(
    name="mqar_tradeoff",
    title="Recall against the size of the state",
    source="Based, Figures 2 and 8",
    jobs={
        "smoke": _small("smoke", (32,), (4, 8), (4, 16)),
        "cpu": _cpu(),
        "paper": _paper(),
    },
    about=ABOUT,
    panels=_panels,
    like="attention",
    notes=(
        "A line joins the models that recall more than every smaller one of their family. The paper's "
        "numbers are read from the figure of its authors' repository.",
        f"At the scale cpu, Mamba and those after it have one width and one learning rate, {CPU_RATE}.",
    ),
)

if __name__ == "__main__":
    run(STUDY)
