"""Map rows of published tables to presets and to the runs whose evaluations fill them."""

import json
from importlib.resources import files
from typing import Any

from based_jax.models import presets
from based_jax.published.tables import Row, Table

_FILE = files("based_jax.published") / "data" / "presets.json"
_PRESETS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
_BASED = {(model, size): preset for model, size, preset in _PRESETS["based"]}
_ABLATIONS = {tuple(key): preset for *key, preset in _PRESETS["ablations"]}  # by the table's key

RELEASED: tuple[str, ...] = tuple(_PRESETS["released"])
"""The authors' checkpoints on the hub, under hazyresearch/."""


def preset_of(table: Table, row: Row) -> str | None:
    """Return the preset with the row's shape; None if there is none."""
    model = str(row.get("model", ""))
    if table.name.startswith("zoology_table"):
        size: Any = row.get("parameters")
        size = 1000 * size if table.name == "zoology_table_6" else size  # printed in billions
        name = f"zoology-{_PRESETS['zoology'].get(model)}-{size:.0f}m" if size else None
    elif table.name == "based_table_6":
        name = _ABLATIONS.get(tuple(row.get(key) for key in table.key))
    elif table.name in ("based_table_4", "based_table_5"):
        name = _PRESETS["dna"].get(model)
    elif table.name == "based_table_3":
        name = _PRESETS["superglue"].get(model)
    else:
        name = row.get("checkpoint") or _BASED.get((model, _size(row)[0]))
    return str(name) if name in presets.names() else None


def run_of(table: Table, row: Row) -> str | None:
    """Return the row's released checkpoint, or the name of the preset of our own run."""
    name = preset_of(table, row)
    if name is None or name.startswith(("zoology", "hg38")):
        return name
    name += {"10b": "", "50b": "-50b"}.get(_size(row)[1], " has no such checkpoint")
    return name if name in RELEASED else None


def _size(row: Row) -> tuple[str, str]:
    """Return parameters and training tokens of "363m/10b"; tokens default to 10b."""
    parameters, _, tokens = str(row.get("size", "")).partition("/")
    return parameters, tokens or "10b"
