"""Torch names and layouts of our modules, in the authors' code, in fla's models and in `transformers`.

`weights.json` has them. "names": a code base -> its names of the parts of a language model, where they differ
from the authors'. "renamed": fla, whose older versions had other names, or a `model_type` of `transformers`,
whose names become Llama's -> parts of names and what they become, replaced in this order. "rules": a code
base -> our name of a module -> rows [torch name, our path, layout, axes of size 1 in torch], or the "code
base/module" of a table to include. Several names are stacked in this order.

    dense (the default)   NAME.weight, NAME.bias <-> PATH/kernel, PATH/bias
    heads                 the same, of a kernel with two input axes: heads and their channels
    taps                  of a depthwise convolution: NAME.weight (channels, 1, taps) <-> PATH_kernel, ...
    linear, vector, same  one tensor: a matrix, which is transposed; a vector, of any shape here; an array

Tables include optional parts (biases); `layouts.select` keeps those that a module has.
"""

import dataclasses
import functools
from collections.abc import Collection, Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from based_jax.convert.layouts import Rule, Rules, under
from based_jax.files import read_json
from based_jax.models import ModelConfig

_TABLES: dict[str, dict[str, Any]] = read_json(Path(__file__).with_name("weights.json"))
_INPUTS = {"linear": 1, "vector": 0, "same": None}


@functools.cache
def rules(code: str, module: str) -> Rules:
    """Return the rules of a module in a code base."""
    return rules_of(_TABLES["rules"][code][module])


def rules_of(rows: Iterable[str | Sequence[Any]]) -> Rules:
    """Return the rules of rows as in `weights.json`."""
    found: list[Rule] = []
    for row in rows:
        found += rules(*row.split("/")) if isinstance(row, str) else _of_row(*row)
    return tuple(found)


def _of_row(
    keys: str | Sequence[str], paths: str | Sequence[str], layout: str = "dense", ones: Sequence[int] = ()
) -> list[Rule]:
    keys, paths = ((names,) if isinstance(names, str) else tuple(names) for names in (keys, paths))
    if layout in _INPUTS:
        return [Rule(keys, paths, _INPUTS[layout], tuple(ones))]
    weights, biases = (tuple(f"{key}.{kind}" for key in keys) for kind in ("weight", "bias"))
    mark = "_" if layout == "taps" else "/"
    kernel = Rule(weights, tuple(f"{path}{mark}kernel" for path in paths), 2 if layout == "heads" else 1)
    bias = Rule(biases, tuple(f"{path}{mark}bias" for path in paths), 0)
    return [kernel._replace(ones=(1,)) if layout == "taps" else kernel, bias]


@dataclasses.dataclass(frozen=True)
class Names:
    """A code base's names of the parts of a language model; the defaults are the authors'."""

    rules: str
    """the code base whose rules its modules have"""
    backbone: str = "transformer"
    mixer: str = "mixer"
    mlp: str = "mlp"
    norm: str = "norm1"
    """norm before the mixer"""
    norm2: str = "norm2"
    """norm before the MLP"""
    final_norm: str = "ln_f"
    word_embedding: str = "embeddings.word_embeddings"
    head: str = "lm_head.weight"
    """the head; a tied head equals the embedding"""

    @property
    def embedding(self) -> str:
        """Return the key of the token embedding."""
        return f"{self.backbone}.{self.word_embedding}.weight"

    def layer(self, index: int) -> str:
        """Return the prefix of a block."""
        return f"{self.backbone}.layers.{index}"

    def layers(self, keys: Iterable[str]) -> set[str]:
        """Return the indices of the blocks that have weights."""
        prefix = f"{self.backbone}.layers."
        return {key.removeprefix(prefix).partition(".")[0] for key in keys if key.startswith(prefix)}


RENAMED: dict[str, list[tuple[str, str]]] = _TABLES["renamed"]
NAMES = {code: Names(**{"rules": code, **names}) for code, names in _TABLES["names"].items()}
AUTHORS = NAMES["authors"]


def names_of(config: ModelConfig, keys: Container[str] = ()) -> Names:
    """Return the names of a model's parts in the code base whose embedding is in `keys`, or the authors'."""
    for names in NAMES.values():
        if names.embedding in keys:
            return names
    mixers = {config.layer(index).mixer for index in range(config.num_layers)}
    is_mamba = "mamba" in mixers and mixers <= {"mamba", "attention"} and config.block == "prenorm"
    return NAMES["mamba" if is_mamba and config.mlp in ("none", "gated") else "authors"]


def mlp_rules(keys: Collection[str]) -> Rules:
    """Return the rules of the MLPs in a checkpoint with these keys."""
    if any(".mlp.gate_proj." in key for key in keys):
        return rules("fla", "gated_mlp")
    return rules("authors", "alt_mlp" if any(".mlp.fc3." in key for key in keys) else "mlp")


def block_rules(mixer: Iterable[Rule], names: Names = AUTHORS, mlp: Rules | None = None) -> Rules:
    """Return the rules of a residual block around a mixer with the given rules."""
    norm = rules("authors", "norm")
    return (
        *under(norm, names.norm, "norm1"),
        *under(mixer, names.mixer, "mixer"),
        *under(norm, names.norm2, "norm2"),
        *under(rules("authors", "mlp") if mlp is None else mlp, names.mlp, "mlp"),
    )


def model_rules(mixers: Sequence[Iterable[Rule]], names: Names = AUTHORS, mlp: Rules | None = None) -> Rules:
    """Return the rules of a language model, given each layer's mixer rules; without a tied head."""
    embeddings = f"{names.backbone}.embeddings"
    found = rules_of(
        [
            [names.embedding, "embedding", "same"],
            [f"{embeddings}.position_embeddings.weight", "position_embedding", "same"],
            [names.head, "head", "same"],
            [f"{embeddings}.project_in", "project_in"],
            ["project_out", "project_out"],
        ]
    )
    for index, mixer in enumerate(mixers):
        found += under(block_rules(mixer, names, mlp), names.layer(index), f"layers_{index}")
    return found + under(rules("authors", "norm"), f"{names.backbone}.{names.final_norm}", "final_norm")


def mixer_rules(name: str, paths: Iterable[str] = (), names: Names = AUTHORS) -> Rules:
    """Return the rules of a registered mixer; without a table, its paths with dots and unchanged arrays."""
    for code in (names.rules, "authors"):
        if name in _TABLES["rules"][code]:
            return rules(code, name)
    return rules_of([path.replace("/", "."), path, "same"] for path in paths)
