"""Convert blocks, MLPs, norms and language models of Based's and flash-attention's code from fixtures.

Fixtures describe an MLP by class and activation ("GatedMlp swiglu"), a mixer by class and arguments
("BaseConv(k=3, expand_proj=2)"); sizes come from the weights.
"""

import ast
import re
from collections.abc import Callable
from typing import Any

from based_jax import mixers
from based_jax.convert import tables
from based_jax.convert.authors import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from based_jax.convert.configs import kind, model_config
from based_jax.convert.layouts import Rules, Shapes, shape_of
from based_jax.convert.options import expect_known, size
from based_jax.convert.references.mixers import ATTENTION, BASE_CONV, MIXERS, Meta
from based_jax.models import MLP, Block, GatedMLP, LanguageModel, LayerNorm, RMSNorm
from based_jax.validate import expect, expect_choice

NORMS = {"rms": "rms", "rmsnorm": "rms", "layernorm": "layer", "layer": "layer"}


MLPS: dict[str, tuple[type[MLP], dict[str, str], str]] = {
    "GatedMlp": (GatedMLP, GATED_ACTIVATIONS, "glu"),
    "Mlp": (MLP, PLAIN_ACTIVATIONS, "gelu"),  # F.gelu, the exact one
}
"""Class of an MLP -> ours, the activations by their names, and the default."""


def mlp(name: str, meta: Meta, shapes: Shapes) -> MLP:
    """Build GatedMlp, of either type, or Mlp."""
    ours, activations, default = MLPS[name]
    activation = str(meta.get("activation", default)).removeprefix("alt_")
    expect_choice("activation", activation, tuple(activations))
    return ours(activation=activations[activation], **_sizes(meta, shapes))


def _sizes(meta: Meta, shapes: Shapes) -> dict[str, Any]:
    out, hidden = shape_of(shapes, "fc2.weight")
    width = shape_of(shapes, "fc1.weight")[1]
    biases = "fc1.bias" in shapes, "fc2.bias" in shapes
    for name, found in zip(("bias1", "bias2"), biases, strict=True):
        wanted = meta.get(name, meta.get("bias", found))
        expect(wanted == found, name, wanted, f"{found}, as the weights have it")
    return {
        "d_model": width,
        "hidden": hidden,
        "bias": biases[0],
        "out_bias": None if biases[0] == biases[1] else biases[1],
        "d_out": None if out == width else out,
    }


def mlp_rules(meta: Meta) -> Rules:
    """Return the layout rules of either MLP."""
    name = str(meta.get("activation", ""))
    is_alt = meta.get("mlp_type") == "alt" or name.startswith("alt_")
    return tables.rules("authors", "alt_mlp" if is_alt else "mlp")


def norm(meta: Meta, shapes: Shapes) -> RMSNorm | LayerNorm:
    """Build RMSNorm, or LayerNorm if there is a bias."""
    return (LayerNorm if "bias" in shapes else RMSNorm)(eps=meta.get("eps", 1e-5))


def block(meta: Meta, shapes: Shapes) -> Block:
    """Build Block or ParallelBlock with any known mixer and MLP."""
    is_parallel = "ParallelBlock" in str(meta.get("module"))
    tied = "_tied" if meta.get("tied_norm", meta.get("parallel_block_tied_norm", False)) else ""
    drops = [meta.get(f"drop_path{number}", 0.0) for number in (1, 2)]
    expect(drops[0] == drops[1], "drop_path2", drops[1], f"{drops[0]}, as drop_path1")
    expect_choice("norm", meta.get("norm", "layernorm"), tuple(NORMS))
    return Block(
        mixer=_mixer(meta, _below("mixer", shapes)),
        mlp=_mlp(str(meta.get("mlp", "Mlp gelu")), _below("mlp", shapes)),
        norm=NORMS[meta.get("norm", "layernorm")],
        norm_eps=meta.get("eps", 1e-5),
        kind=f"parallel{tied}" if is_parallel else "prenorm" if meta.get("prenorm", True) else "postnorm",
        dropout1=meta.get("resid_dropout1", 0.0),
        dropout2=meta.get("resid_dropout2", 0.0),
        drop_path=drops[0],
        residual_in_fp32=meta.get("residual_in_fp32", True),
    )


def block_rules(meta: Meta) -> Rules:
    """Return the layout rules of a block."""
    name, given = _call(meta)
    is_alt = "alt" in str(meta.get("mlp", "")).split(" ")[-1]
    rules = MIXERS[_BLOCK_MIXERS[name][0]].rules_for(given)
    return tables.block_rules(rules, mlp=tables.rules("authors", "alt_mlp" if is_alt else "mlp"))


def _below(part: str, shapes: Shapes) -> Shapes:
    return {key.removeprefix(f"{part}."): s for key, s in shapes.items() if key.startswith(f"{part}.")}


def _mlp(text: str, shapes: Shapes) -> MLP | None:
    name, _, activation = text.partition(" ")
    expect_choice("mlp", name, (*MLPS, "Identity", "none", "None"))
    return mlp(name, {"activation": activation} if activation else {}, shapes) if name in MLPS else None


def _call(meta: Meta) -> tuple[str, dict[str, Any]]:
    """Parse the name and arguments of a mixer that is written as a call."""
    text = str(meta.get("mixer", "MHA"))
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", text)
    expect(found is not None, "mixer", text, "a class with arguments: 'BaseConv(k=3, expand_proj=2)'")
    name, arguments = (found[1], found[2] or "") if found else ("", "")
    expect_choice("mixer", name, tuple(_BLOCK_MIXERS))
    pairs = (part.partition("=") for part in arguments.split(",") if part.strip())
    return name, {key.strip(): _value(value.strip()) for key, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _mixer(meta: Meta, shapes: Shapes) -> Any:
    """Build a block's mixer; arguments that the text does not have come from the weights."""
    name, given = _call(meta)
    path, inferred = _BLOCK_MIXERS[name]
    given = {"kernel_size" if name == "BaseConv" and key == "k" else key: v for key, v in given.items()}
    expect_known(path, given, name)
    arguments = {**inferred(given, shapes), **given}
    spec = MIXERS[path].spec(arguments)
    return mixers.make(spec.mixer, d_model=arguments["d_model"], **spec.options)


def _base_conv(given: Meta, shapes: Shapes) -> dict[str, Any]:
    inner, d_model = shape_of(shapes, "in_proj.weight")
    return {
        "d_model": d_model,
        "expand_proj": inner // d_model,
        "kernel_size": shape_of(shapes, "conv.conv.weight", 3)[-1],
        "use_bias": "in_proj.bias" in shapes,
        "conv_bias": "conv.conv.bias" in shapes,
    }


def _linear_attention(given: Meta, shapes: Shapes) -> dict[str, Any]:
    rows, d_model = shape_of(shapes, "proj_q.weight")
    heads = rows // size(given, "feature_dim", 16)
    values = shape_of(shapes, "proj_v.weight")[0]
    return {"d_model": d_model, "num_heads": heads, "head_dim": values // max(heads, 1)}


def _heads(given: Meta, shapes: Shapes) -> dict[str, Any]:
    rows, d_model = shape_of(shapes, "Wqkv.weight")
    heads = size(given, "num_heads", max(d_model // 64, 1))
    return {
        "d_model": d_model,
        "causal": True,
        "num_heads": heads,
        "num_heads_kv": (rows // max(d_model // heads, 1) - heads) // 2,
        "qkv_proj_bias": "Wqkv.bias" in shapes,
        "out_proj_bias": "out_proj.bias" in shapes,
    }


_BLOCK_MIXERS: dict[str, tuple[str, Callable[[Meta, Shapes], dict[str, Any]]]] = {
    "BaseConv": (BASE_CONV, _base_conv),
    "LinearAttention": ("based.models.mixers.linear_attention.LinearAttention", _linear_attention),
    "MHA": (ATTENTION, _heads),
    "SlidingAttention": ("based.models.mixers.slide_attention.SlidingAttention", _heads),
}
"""Class of a block's mixer -> its path, and what the weights say of its arguments."""


def authors_model(meta: Meta, shapes: Shapes) -> LanguageModel:
    """Build the model of a checkpoint's config."""
    return LanguageModel(model_config(meta["config"], shapes))


def authors_model_rules(meta: Meta) -> Rules:
    """Return the layout rules of a checkpoint."""
    config = model_config(meta["config"], {})
    names = tables.NAMES["mamba" if kind(meta["config"]) == "mamba" else "authors"]
    rules = [tables.mixer_rules(config.layer(i).mixer, names=names) for i in range(config.num_layers)]
    is_alt = meta["config"].get("mlp_type", "base") != "base" and config.mlp == "gated"
    return tables.model_rules(rules, names, tables.rules("authors", "alt_mlp" if is_alt else "mlp"))
