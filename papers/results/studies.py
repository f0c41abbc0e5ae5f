"""Read our runs of the studies that draw a published figure."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax.experiments.job import SLICE
from based_jax.experiments.results import best
from based_jax.experiments.study import Study
from based_jax.files import read_json, read_json_lines

STUDIES = {
    "based_figure_2": "mqar_tradeoff",
    "based_figure_3": "mqar_feature_maps",
    "zoology_figure_2": "mqar_width",
}
"""Studies by table."""

UNPRINTED = {
    "Based, Figure 1 (centre)": (
        "mqar_window",
        "Recall by the window. Linear attention with a short window recalls more than either alone, and with "
        "windows of 64 to 128 tokens nearly what attention does.",
    ),
    "Based, Figure 8": (
        "mqar_tradeoff",
        "Figure 2 with sparse approximations: ScatterBrain, BigBird and Nystromformer lie below Based. Our "
        "run is [above](#based-figure-2).",
    ),
    "Zoology, Figures 6 and 7": (
        "mqar_pairs",
        "Recall by the number of pairs, and by Hyena's heads. With more pairs RetNet and Hyena need a larger "
        "width; windows hold as many pairs as fit; more heads recall more.",
    ),
}
"""Figures without printed numbers -> their study, and what they show."""


@dataclass(frozen=True)
class Run:
    """A directory that a study wrote."""

    path: Path
    study: Study
    scale: str
    rows: tuple[Mapping[str, Any], ...]
    """the best learning rate of each job"""


def read_runs(directory: Path, table: str) -> list[Run]:
    """Return the runs below a directory that belong to a table; see `runs_of`."""
    return runs_of(directory, STUDIES[table]) if table in STUDIES else []


def runs_of(directory: Path, study: str) -> list[Run]:
    """Return the runs of a study below a directory, sorted by path.

    Raises:
        FileNotFoundError: a study.json without its results.
        ValueError: a study.json that no study wrote; the message has its path.
    """
    runs = []
    for path in sorted(directory.rglob("study.json")):
        name, scale = _facts(path)
        if name == study:
            rows = read_json_lines(path.parent / "results.jsonl")
            slice_ = SLICE[scale] if name == "mqar_feature_maps" else None
            module = importlib.import_module(f"based_jax.experiments.{name}")
            runs.append(Run(path.parent, module.STUDY, scale, tuple(best(rows, slice_))))
    return runs


def _facts(path: Path) -> tuple[str, str]:
    try:
        facts = read_json(path)
        return facts["study"], facts["scale"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"study = {str(path)!r}: expected what a study wrote") from error


def cell_of(table: str, row: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the published row and column that a row of a run at the papers' scale measures."""
    family, width = row["family"], str(row["d_model"])
    if table == "based_figure_2":
        return {"model": family, "setting": row["setting"]}, "accuracy"
    if table == "zoology_figure_2":
        return {"model": family, "length": row["length"]}, width
    # The figure has d' 24 for Taylor, and the width of the model for the other maps.
    return {"feature_map": family if row["setting"] != f"d {width}, d' 16" else None}, width
