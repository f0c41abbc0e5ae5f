"""Read the papers' tables from the files in `data`: a .csv each, and their description tables.toml.

Their rows have presets, and runs whose evaluations fill them.

The FLOPs come from formulas (Zoology, appendix): one training step on one sequence takes

    6 (2 V N D + layers * MACs of a layer)      V vocabulary, N tokens, D width

with 2 FLOPs per multiply-add, and a backward pass twice as expensive as the forward. Input and output
embeddings both count. In this form the formulas give the printed TFLOPs of every table row, except for the
paper's misprints.
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from based_jax.files import read_json, read_toml
from based_jax.models import ModelConfig, presets
from based_jax.validate import expect, expect_choice

Cell = str | int | float | None
Row = Mapping[str, Cell]

_DATA = Path(__file__).with_name("data")
_FILTER = 64
"""Width of the network that generates a long filter."""


@dataclass(frozen=True)
class Column:
    """The meaning of a column."""

    about: str
    unit: str = ""
    better: str = ""
    """"higher" or "lower" if that is better, else empty"""


@dataclass(frozen=True)
class Table:
    """A published table, or the points of a figure."""

    name: str
    """the argument of `table`, such as "based_table_2" """
    source: str
    """its title, such as "Based, Table 2" """
    title: str
    key: tuple[str, ...]
    """the columns that identify a row"""
    about: Mapping[str, Column]
    """by column, in the table's order"""
    rows: tuple[Row, ...]
    """cells by column: numbers if the whole column is numeric, None for empty cells"""
    printed: tuple[Mapping[str, str], ...]
    """the same cells as printed, "" for empty ones"""
    notes: tuple[str, ...] = ()
    """misprints, and facts needed to compare"""
    measure: tuple[str, ...] = ()
    """commands that compute our value of a cell"""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.about)

    def row(self, **key: Cell) -> Row:
        """Return the one row with these cells, as in ``row(model="Based", size="363m/10b")``.

        Raises:
            ValueError: no row, or more than one; the message lists the rows.
        """
        found = [row for row in self.rows if all(row.get(name) == cell for name, cell in key.items())]
        known = "; ".join(", ".join(f"{name}={row[name]!r}" for name in self.key) for row in self.rows)
        expect(len(found) == 1, f"row of {self.name}", key, f"one of {known}")
        return found[0]


def names() -> tuple[str, ...]:
    """Return the names of all tables, in the order of the papers."""
    return tuple(_descriptions()["tables"])


def table(name: str, number: int | None = None) -> Table:
    """Read a published table.

    Args:
        name: one of `names`, such as "based_readme_recall"; with a number a paper's: "based", "zoology".
        number: of the table in the paper's last version: ``table("based", 2)`` is "based_table_2".

    Raises:
        ValueError: no such table; the message lists the known ones.
    """
    if number is not None:
        name = f"{name}_table_{number}"
    expect_choice("table", name, names())
    return _read(name)


def number(row: Row, column: str) -> float:
    """Return a numeric cell that is not empty.

    Raises:
        ValueError: the cell has text, or is empty.
    """
    value = row[column]
    expect(isinstance(value, int | float), column, value, "a number")
    return value  # type: ignore[return-value]


def shared_columns() -> dict[str, Column]:
    """Return the columns that mean the same in all tables, unless a table describes its own."""
    return {name: Column(**facts) for name, facts in _descriptions()["columns"].items()}


@cache
def _descriptions() -> dict[str, Any]:
    return read_toml(_DATA / "tables.toml")


@cache
def _read(name: str) -> Table:
    facts = _descriptions()["tables"][name]
    own = {column: Column(**about) for column, about in facts.get("columns", {}).items()}
    described = shared_columns() | own
    text = (_DATA / f"{name}.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    printed = tuple(lines)
    columns = lines.fieldnames or ()
    values = {column: _values([row[column] for row in printed]) for column in columns}
    return Table(
        name=name,
        source=facts["source"],
        title=facts["title"],
        key=tuple(facts["key"]),
        about={column: described[column] for column in columns},
        rows=tuple({column: values[column][i] for column in columns} for i in range(len(printed))),
        printed=printed,
        notes=tuple(facts.get("notes", ())),
        measure=tuple(facts.get("measure", ())),
    )


def _values(cells: list[str]) -> list[Cell]:
    """Convert cells to numbers if all non-empty cells are numbers, else keep text."""
    try:
        return [None if not cell else float(cell) if "." in cell else int(cell) for cell in cells]
    except ValueError:
        return [cell or None for cell in cells]


_PRESETS: dict[str, Any] = read_json(_DATA / "presets.json")
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


def training_flops(config: ModelConfig, length: int) -> float | None:
    """Return the papers' count for a step on `length` tokens; None if a layer has no formula there.

    The formulas have MLPs of 8 or 4 D^2 multiply-adds, so a layer with another one has none, either.
    """
    layers = [config.layer(index) for index in range(config.num_layers)]
    maps = {"gated": 3, "plain": 2}.get(config.mlp, 0)
    mlp = maps * config.mlp_hidden / config.d_model
    for mixer in {layer.mixer for layer in layers}:
        counted = _MLPS.get(mixer, mlp)
        if mixer not in _MACS or abs(mlp - counted) > 0.1 * counted:
            return None
    ends = 2 * config.vocab_size * length * config.d_model
    return 6.0 * (ends + sum([_MACS[layer.mixer](config, length, layer.options) for layer in layers]))


def _fft(length: int, channels: float) -> float:
    return 10 * length * math.log2(length) * channels


def _attention(config: ModelConfig, length: int, options: Mapping[str, Any]) -> float:
    """Count the maps, scores and values, and an MLP of three maps of width 8/3 D."""
    width, heads = config.d_model, options.get("num_heads") or 1
    return 4 * length * width**2 + 2 * (heads * length**2 + length**2 * width) + 8 * length * width**2


def _base_conv(config: ModelConfig, length: int, _: Any) -> float:
    """Count half of the channels, or layers, as short convolutions and half as long ones."""
    width = config.d_model
    mixer = _fft(length, width / 2) + length * width / 2 + width / 2 * _FILTER + length * width**2
    return mixer + 4 * length * width**2


def _hyena(config: ModelConfig, length: int, _: Any) -> float:
    width = config.d_model
    maps = 3 * length * width**2 + 9 * length * width + 3 * length * width + length * width**2
    return maps + _fft(length, width) + _FILTER * width + 4 * length * width**2


def _long_conv(config: ModelConfig, length: int, _: Any) -> float:
    width = config.d_model
    return _fft(length, width) + length * width**2 + 8 * length * width**2


_MACS = {
    "attention": _attention,
    "base_conv": _base_conv,
    "hyena": _hyena,
    "long_conv": _long_conv,
    "rwkv4": lambda config, length, _: 13 * length * config.d_model**2,
    "rwkv_channel_mix": lambda config, length, _: 0.0,  # counted with the RWKV layer before it
}
"""Multiply-adds of a layer with its MLP."""

_MLPS = {"attention": 8, "long_conv": 8, "base_conv": 4, "hyena": 4}
"""Those of the MLP, in D^2 for each token."""


@cache
def printed_tflops() -> dict[str, float]:
    """Return the TFLOPs that Zoology's Tables 1, 2 and 4 print for our presets, at 2,048 tokens."""
    found = {}
    for name in (1, 2, 4):
        printed = table("zoology", name)
        for row in printed.rows:
            if (preset := preset_of(printed, row)) is not None:
                found[preset] = number(row, "tflops")
    return found
