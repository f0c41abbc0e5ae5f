"""Read our runs of the studies that draw a published figure."""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax.experiments.based_data import SLICE
from based_jax.experiments.results import best
from based_jax.experiments.study import Study
from based_jax.files import read_json

STUDIES = {
    "based_figure_2": "mqar_tradeoff",
    "based_figure_3": "mqar_feature_maps",
    "zoology_figure_2": "mqar_width",
}
"""Studies by table."""


@dataclass(frozen=True)
class Run:
    """A directory that a study wrote."""

    path: Path
    study: Study
    scale: str
    rows: tuple[Mapping[str, Any], ...]
    """the best learning rate of each job"""


def read_runs(directory: Path, table: str) -> list[Run]:
    """Return the runs below a directory that belong to a table, sorted by path.

    Raises:
        FileNotFoundError: a study.json without its results.
        ValueError: a study.json that no study wrote; the message has its path.
    """
    if table not in STUDIES:
        return []
    runs = []
    for path in sorted(directory.rglob("study.json")):
        name, scale = _facts(path)
        if name == STUDIES[table]:
            lines = (path.parent / "results.jsonl").read_text(encoding="utf-8").splitlines()
            slice_ = SLICE[scale] if table == "based_figure_3" else None
            study = importlib.import_module(f"based_jax.experiments.{name}").STUDY
            runs.append(Run(path.parent, study, scale, tuple(best(map(json.loads, lines), slice_))))
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
