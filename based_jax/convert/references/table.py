"""The table of the authors' torch modules that have a counterpart here.

An entry is found by the prefix of a fixture's `module`; it builds our module from the fixture's
hyperparameters (or from tensor shapes if those are not given), and names the layout rules.
"""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from flax import linen as nn

from based_jax import mixers
from based_jax.convert import tables
from based_jax.convert.configs import kind
from based_jax.convert.layouts import Rules, Shapes
from based_jax.convert.references import models, zoology_models
from based_jax.convert.references.mixers import ALIASES, MIXERS, Meta, TorchMixer, expect_arguments
from based_jax.convert.references.ops import OPS, TorchOp


class Reference(NamedTuple):
    """How to convert one of the authors' modules to ours."""

    build: Callable[[Meta, Shapes], nn.Module]
    """meta and the shapes of the torch tensors -> our module"""
    rules: Callable[[Meta], Rules]
    """layout rules of its parameters"""
    width: Callable[[Meta, Shapes], int] = lambda meta, shapes: meta["d_model"]
    """number of input channels"""
    names: tables.Names | None = None
    """tensor names of a language model"""
    dropped: Callable[[Meta], tuple[str, ...]] = lambda meta: ()
    """unused torch keys"""


def find(meta: Meta) -> Reference:
    """Return the entry for a fixture, after checking its arguments; see `expect_arguments`."""
    name = module_name(meta)
    for known, reference in REFERENCES.items():
        if re.match(rf"{re.escape(known)}\b", name):
            if reference.names is None:  # a model's config is checked elsewhere
                expect_arguments(known, meta)
            return reference
    raise ValueError(f"module = {name!r}: expected one of {', '.join(REFERENCES)}")


def module_name(meta: Meta) -> str:
    """Return the origin of a meta's numbers, in the form of the table's keys."""
    if "op" in meta:
        return f"op {meta['op']}"
    if "config" in meta:
        return f"checkpoint {meta.get('kind') or kind(meta['config'])}"
    if "model" in meta:
        return "training trace of a zoology language model"
    return str(meta.get("module", "a meta that names no module"))


def _mixer(mixer: TorchMixer) -> Reference:
    def build(meta: Meta, shapes: Shapes) -> nn.Module:
        spec = mixer.spec(described(meta))
        return mixers.make(spec.mixer, d_model=meta["d_model"], **spec.options)

    return Reference(build, mixer.rules_for, dropped=mixer.dropped_for)


def described(meta: Meta) -> Meta:
    """Return a meta without the explanations that fixtures append to values: "16 (patched)", "auto=2"."""
    found = dict(meta)
    for name, text in meta.items():
        if isinstance(text, str) and (match := re.match(r"(\w+)[\s=]", text)):
            found[name] = int(match[1]) if match[1].isdigit() else match[1]
    return found


def _width(key: str) -> Callable[[Meta, Shapes], int]:
    return lambda meta, shapes: shapes[key][-1]


_NORM = Reference(models.norm, lambda meta: tables.rules("authors", "norm"), _width("weight"))
_BLOCK = Reference(models.block, models.block_rules, _width("norm1.weight"))

REFERENCES: dict[str, Reference] = {
    **{path: _mixer(mixer) for path, mixer in MIXERS.items()},
    **{name: _mixer(MIXERS[path]) for name, path in ALIASES.items() if path in MIXERS},
    **{
        f"{package}.mlp.{name}": Reference(
            functools.partial(models.mlp, name), models.mlp_rules, _width("fc1.weight")
        )
        for package in ("based.models", "flash_attn.modules")
        for name in models.MLPS
    },
    "based.ops.triton.layer_norm.RMSNorm": _NORM,
    "flash_attn.ops.triton.layer_norm.RMSNorm": _NORM,
    "torch.nn.LayerNorm": _NORM,
    "based.models.block.Block": _BLOCK,
    "flash_attn.modules.block.Block": _BLOCK,
    "flash_attn.modules.block.ParallelBlock": _BLOCK,
    "checkpoint mamba": Reference(
        models.authors_model, models.authors_model_rules, names=tables.NAMES["mamba"]
    ),
    "checkpoint": Reference(models.authors_model, models.authors_model_rules, names=tables.AUTHORS),
    "zoology.mixers.mlp.MLP": Reference(zoology_models.mlp, lambda meta: tables.rules("authors", "mlp")),
    "zoology.mixers.mlp.GLU": Reference(zoology_models.glu, lambda meta: tables.rules("zoology", "glu")),
    "zoology.model.LanguageModel": Reference(
        zoology_models.language_model,
        zoology_models.language_model_rules,
        names=tables.NAMES["zoology"],
        dropped=zoology_models.language_model_dropped,
    ),
    "training trace of a zoology language model": Reference(
        lambda meta, shapes: zoology_models.language_model(meta["model"], shapes),
        lambda meta: zoology_models.language_model_rules(meta["model"]),
        names=tables.NAMES["zoology"],
        dropped=lambda meta: zoology_models.language_model_dropped(meta["model"]),
    ),
    **{f"op {op}": Reference(lambda meta, shapes: TorchOp(meta["op"]), lambda meta: ()) for op in OPS},
}
"""Prefix of `module_name(meta)` -> entry."""
