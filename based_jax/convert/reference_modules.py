"""Convert the authors' torch modules: a fixture's meta and state dict to (module, params), and back.

An entry of `REFERENCES` is found by the prefix of a fixture's `module`; it builds our module from the
fixture's hyperparameters (or from tensor shapes if those are not given), and names the layout rules.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import mixers
from based_jax.convert import tables
from based_jax.convert.configs import kind
from based_jax.convert.layouts import (
    Rules,
    Shapes,
    flatten,
    shape_of,
    shapes_of,
    to_tensors,
    to_tree,
    torch_shapes,
)
from based_jax.convert.references import models, zoology_models
from based_jax.convert.references.mixers import ALIASES, MIXERS, Meta, TorchMixer, expect_arguments
from based_jax.convert.references.ops import OPS, TorchOp
from based_jax.convert.state_dict import expect_keys, expect_weights, with_norms_before
from based_jax.models import LanguageModel
from based_jax.typing import Params


def from_torch(meta: Meta, state_dict: Mapping[str, Any]) -> tuple[nn.Module, Params]:
    """Convert one of the authors' modules to ours, with its parameters.

    Args:
        meta: of a reference fixture: its `module` (or `op`, a checkpoint's `kind` and `config`, a training
            trace's `model`) and hyperparameters.
        state_dict: torch parameters by key, as numpy arrays; empty for an op.

    Returns:
        An unbound Flax module and ``{"params": ...}`` in float32. An op's module takes the fixture's inputs
        in the fixture's layout and returns y, or (y, final state) where the op has a state.

    Raises:
        ValueError: an unknown module (the message lists the known ones) or option; tensors that are missing,
            unexpected, of a wrong shape or not weights (`expect_weights`), by name; an untied head.
    """
    reference = find(meta)
    state_dict = with_norms_before(state_dict)
    shapes = {key: tuple(tensor.shape) for key, tensor in state_dict.items()}
    module = reference.build(meta, shapes)
    if isinstance(module, TorchOp):
        expect_keys(shapes, {})
        return module, {"params": {}}
    if reference.names is not None:
        if cast(LanguageModel, module).config.tie_embeddings:
            state_dict = drop_tied_head(state_dict, reference.names)
        inputs = jnp.zeros((1, 1), jnp.int32)
    else:
        inputs = jnp.zeros((1, 1, reference.width(meta, shapes)), jnp.float32)
    dropped = reference.dropped(meta)
    state_dict = {key: tensor for key, tensor in state_dict.items() if key not in dropped}
    expect_weights(state_dict)
    return module, to_params(reference.rules(meta), state_dict, shapes_of(module, inputs))


def to_torch(meta: Meta, params: Params) -> dict[str, Any]:
    """Convert our parameters, or their gradients, to a torch state dict; the inverse of `from_torch`.

    Tied heads, constants and aliases of shared tensors are omitted, as in the fixtures' gradients.

    Args:
        meta: as for `from_torch`.
        params: ``{"params": ...}``; boxes with logical axis names are removed.

    Raises:
        ValueError: an unknown module, or parameters of another module.
    """
    tree = nn.meta.unbox(params)["params"]
    return to_tensors(find(meta).rules(meta), flatten(tree))


def to_params(
    rules: Rules, tensors: dict[str, Any], ours: Shapes, shardings: Mapping[str, Any] = {}
) -> Params:
    """Convert tensors to parameters of the given paths and shapes; the tensors must match the rules exactly.

    `tensors` is empty afterwards; see `to_tree`.
    """
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    expect_keys(found, torch_shapes(rules, ours))
    return {"params": to_tree(rules, tensors, ours, shardings)}


def drop_tied_head(tensors: Mapping[str, Any], names: tables.Names) -> dict[str, Any]:
    """Return the tensors without the head, which must be absent or equal to the embedding."""
    rest = dict(tensors)
    head = rest.pop(names.head, None)
    embedding = rest.get(names.embedding)
    if head is not None and embedding is not None and not np.array_equal(head, embedding):
        raise ValueError(f"{names.head} differs from {names.embedding}: expected a tied head, the same array")
    return rest


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
    """Return the origin of a meta's numbers, in the form of the keys of `REFERENCES`."""
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


def _width(key: str, axes: int = 1) -> Callable[[Meta, Shapes], int]:
    return lambda meta, shapes: shape_of(shapes, key, axes)[-1]


_NORM = Reference(models.norm, lambda meta: tables.rules("authors", "norm"), _width("weight"))
_BLOCK = Reference(models.block, models.block_rules, _width("norm1.weight"))

REFERENCES: dict[str, Reference] = {
    **{path: _mixer(mixer) for path, mixer in MIXERS.items()},
    **{name: _mixer(MIXERS[path]) for name, path in ALIASES.items() if path in MIXERS},
    **{
        f"{package}.mlp.{name}": Reference(
            functools.partial(models.mlp, name), models.mlp_rules, _width("fc1.weight", 2)
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
