"""Read the --json files of evaluation commands: their checkpoints, and the cells that they fill."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from based_jax.files import read_json

_PILE = ("based_table_1", "based_table_1_v1", "zoology_table_1", "zoology_table_2", "zoology_table_4")


@dataclass(frozen=True)
class Evaluation:
    """One file."""

    path: Path
    run: str
    """the checkpoint's name: the last component of its hub id or directory"""
    tables: tuple[str, ...]
    """the tables that have such numbers"""
    cells: Mapping[str, float]
    """values by column"""
    setting: str
    """the settings that may differ from the papers'"""
    where: Mapping[str, Any] = field(default_factory=dict)
    """other columns that the row must have, such as the number of examples in the prompt"""


def read_evaluations(directory: Path) -> list[Evaluation]:
    """Read all .json files of a directory, sorted by name; none if it does not exist.

    Raises:
        ValueError: a file that no evaluation command wrote; the message names it.
    """
    return [_read(path) for path in sorted(directory.glob("*.json"))]


def _read(path: Path) -> Evaluation:
    try:
        content = read_json(path)
        return next(read(path, content) for mark, read in _KINDS.items() if mark in content)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        wanted = "expected what --json of an evaluation command wrote"
        raise ValueError(f"evaluation = {str(path)!r}: {wanted}") from error


def _recall(path: Path, content: Mapping[str, Any]) -> Evaluation:
    options = content["options"]
    task, data = options["task"], options["data"]
    tables = ("based_table_1", "based_readme_recall", "based_table_1_v1")
    if task == "swde":  # the data set was revised between the versions
        tables = tables[2:] if data == "hf:hazyresearch/based-swde" else tables[:2]
    dtype = options.get("dtype", "own dtype")
    setting = f"{content['examples']:,} examples of {data}, {options['padding']} padding, {dtype}"
    return Evaluation(path, _name(options["checkpoint"]), tables, {task: content["contains"]}, setting)


def _perplexity(path: Path, content: Mapping[str, Any]) -> Evaluation:
    info, slices = content["info"], content["slices"]
    length, name = info["length"], _name(info["checkpoint"])
    setting = f"{slices['all']['tokens']:,} tokens of {info['data']}, {length or 'whole documents'} at a time"
    if name.startswith("hg38"):
        return Evaluation(path, name, ("based_table_4",), {str(length): slices["all"]["perplexity"]}, setting)
    # Without counts of the training data every repeat is a hit: a different slice than the papers'.
    shown = {"all": "", "hits": "_ar", "other": "_other"} if "counts" in info else {"all": ""}
    cells = {
        f"{column}{ending}": slices[slice_][number]
        for slice_, ending in shown.items()
        for column, number in (("ppl", "perplexity"), ("loss", "loss"))
    }
    if "counts" in info and content.get("gap_explained") is not None:
        cells["gap"] = 100 * content["gap_explained"]
    return Evaluation(path, name, _PILE, cells, setting)


def _lm_eval(path: Path, content: Mapping[str, Any]) -> Evaluation:
    options, shots = content["options"], int(content["options"].get("num_fewshot", 0))
    common_sense = options["suite"] == "common_sense"
    limit = f", first {options['limit']} examples" if "limit" in options else ""
    return Evaluation(
        path,
        _name(options["checkpoint"]),
        ("based_table_2", "based_table_1") if common_sense else ("based_table_3",),
        content["columns"],
        f"lm-eval {content['lm_eval']}, {options.get('dtype', 'own dtype')}{limit}",
        {} if common_sense else {"shots": shots},
    )


def _name(checkpoint: str) -> str:
    return Path(checkpoint.removesuffix("/")).name


_KINDS = {"contains": _recall, "slices": _perplexity, "columns": _lm_eval}
"""Readers by a field that only this kind of result has."""
