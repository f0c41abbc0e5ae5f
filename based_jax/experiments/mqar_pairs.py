"""Study recall by the number of pairs, and by Hyena's heads: Zoology, Figures 6 and 7."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from based_jax.experiments.job import Job, zoology_data
from based_jax.experiments.results import best, lines
from based_jax.experiments.study import Rows, make_study, run
from based_jax.plot import Panel

_SHORT = "base_conv:kernel_size=3"
HEADS = (1, 2, 4, 8)

_LENGTHS = {"paper": 256, "cpu": 32, "smoke": 32}


def _jobs(scale: str, pairs: Sequence[int], widths: Sequence[int], windows: Sequence[int]) -> list[Job]:
    models = {"Attention": "attention,attention", "RetNet": "retnet,retnet", "Hyena": "hyena,hyena"}
    for window in windows:
        models[f"sliding window {window}"] = f"{_SHORT},sliding_window:left={window - 1}"
        models[f"blocked window {window}"] = f"{_SHORT},blocked_window:width={window}"

    def jobs(figure: int, family: str, model: str) -> Iterator[Job]:
        for width, number in product(widths, pairs):
            flags = {"d_model": width, "pairs": number, "length": _LENGTHS[scale], "random_fill": False}
            flags |= {"positions": family == "Attention", **zoology_data(scale, family)}
            facts = {"figure": figure, "pairs": number}
            yield Job(family, f"{number} pairs, d {width}", model, flags, facts)

    found = [job for family, model in models.items() for job in jobs(6, family, model)]
    for count in HEADS[1:]:  # one head is Hyena of Figure 6
        found += jobs(7, f"Hyena, {count} heads", ",".join([f"hyena:num_heads={count}"] * 2))
    return found


def _followed_up() -> list[Job]:
    """Return Hyena at another width, and attention with 2 pairs, which only guesses, at other learning rates.

    With 8 heads a model of width 64 has the state of one of width 32 with 2 heads.
    """
    wide = ("Hyena", "Hyena, 4 heads", "Hyena, 8 heads")
    jobs = _jobs("cpu", (4, 8), (64,), ())
    found = [replace(job, facts={**job.facts, "figure": 7}) for job in jobs if job.family in wide]
    (job,) = (job for job in _jobs("cpu", (2,), (32,), ()) if job.family == "Attention")
    setting, flags = f"{job.setting}, other rates", {**job.flags, "learning_rates": "0.001,0.01"}
    return [*found, replace(job, setting=setting, flags=flags)]


def _panels(rows: Rows, scale: str) -> list[Panel]:
    chosen = best(rows)
    panels_of = sorted({(row["figure"], row["d_model"]) for row in chosen})
    pairs = sorted({row["pairs"] for row in chosen})
    panels = []
    for figure, width in panels_of:
        of_figure = [row for row in chosen if row["figure"] == figure or row["family"] == "Hyena"]
        drawn = lines([row for row in of_figure if row["d_model"] == width], lambda row: row["pairs"])
        title = f"as Figure {figure}, model width {width}"
        panels.append(Panel(title, "key-value pairs", drawn, ticks=pairs))
    return panels


STUDY = make_study(
    "mqar_pairs",
    {
        "smoke": _jobs("smoke", (2, 4), (32,), (8,)),
        "cpu": [*_jobs("cpu", (2, 4, 8), (32,), (8,)), *_followed_up()],
        "paper": _jobs("paper", (8, 16, 32, 64), (64, 128, 256), (8, 32)),
    },
    _panels,
)

if __name__ == "__main__":
    run(STUDY)
