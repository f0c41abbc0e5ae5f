"""Study recall against the size of the state: Based, Figure 2, and Figure 8 with sparse approximations."""

from collections.abc import Iterable, Sequence
from itertools import product

from based_jax.experiments.job import DATA, TEXTS, Job
from based_jax.experiments.results import STATE_AXIS, best, lines, published, state_bytes
from based_jax.experiments.study import SCALES, Rows, make_study, run
from based_jax.plot import Panel
from based_jax.published import number, table

FIGURE_8 = ("ScatterBrain", "BigBird", "Nystromformer")
_DATA = {**DATA, "cpu": {**DATA["cpu"], **TEXTS["mqar_tradeoff"]["cpu_data"]}}


def published_points() -> dict[str, list[tuple[float, float]]]:
    """Return state in bytes and accuracy by family, from the paper's figure, of the families trained here."""
    points: dict[str, list[tuple[float, float]]] = {job.family: [] for job in STUDY.jobs["paper"]}
    for row in table("based_figure_2").rows:
        if row["model"] in points:
            points[str(row["model"])].append((number(row, "state_bytes"), number(row, "accuracy")))
    return {family: line for family, line in points.items() if line}


def _grid(
    scale: str,
    family: str,
    widths: Iterable[int],
    model: str,
    setting: str = "",
    values: Iterable[Sequence[int]] = ((),),
) -> list[Job]:
    """Return the jobs of a family; braces in the model and the setting stand for each of the values."""
    jobs = []
    for width, chosen in product(widths, values):
        text = ", ".join(filter(None, (f"d {width}", setting.format(*chosen))))
        jobs.append(Job(family, text, model.format(*chosen), {"d_model": width, **_DATA[scale]}))
    return jobs


def _lines(scale: str) -> list[Job]:
    """Return the jobs of the scale's lines in studies.toml."""
    return [job for line in TEXTS["mqar_tradeoff"]["lines"][scale] for job in _grid(scale, *line)]


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


STUDY = make_study("mqar_tradeoff", {scale: _lines(scale) for scale in SCALES}, _panels)

if __name__ == "__main__":
    run(STUDY)
