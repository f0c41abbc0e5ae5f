"""Convert Zoology's MLPs and small language models from reference fixtures.

Fixtures describe a model's mixers and its MLP ("state mixer") by the import paths of their classes and their
keywords. Blocks are pre-norm with LayerNorms whose epsilon is always 1e-5, or Mamba's: an RMS norm and a
mixer.
"""

from typing import Any

from based_jax.convert import tables
from based_jax.convert.layouts import Rules, Shapes, rekeyed, shape_of
from based_jax.convert.options import Config, expect_known, flag, model_fields, read, schedule_of, size
from based_jax.convert.options import tables as tables_of_options
from based_jax.convert.references.mixers import MIXERS, Meta, is_description
from based_jax.models import MLP, GatedMLP, LanguageModel, MixerSpec, ModelConfig
from based_jax.validate import expect, expect_choice

ACTIVATIONS = ("gelu", "relu", "silu", "sigmoid")
"""Functions of torch.nn.functional that `activation` may be; ours have the same names."""

STATE_MIXERS: dict[str, tuple[str, Rules]] = {
    "zoology.mixers.mlp.MLP": ("plain", tables.rules("authors", "mlp")),
    "zoology.mixers.mlp.GLU": ("gated", tables.rules("zoology", "glu")),
    "torch.nn.Identity": ("identity", ()),
}
"""Import path -> our kind of MLP and its layout rules."""

MAMBA_BLOCKS = tables.NAMES["zoology mamba"]
BLOCKS = {"TransformerBlock": None, "MambaBlock": "mamba.Mamba", "Mamba2Block": "mamba2.Mamba2"}
"""Block -> its mixer below `zoology.mixers`, whatever class the config names; None is that of the config."""

BLOCK_EPS = 1e-5
MODEL = "zoology.config.ModelConfig"


def activation_of(meta: Meta) -> str:
    """Return our name of an MLP's activation; fixtures may describe it, as in "exact (erf) gelu"."""
    text = str(meta.get("activation", "gelu"))
    name = next((name for name in ACTIVATIONS if text.endswith(name)), text)
    expect_choice("activation", name, ACTIVATIONS)
    return name


def mlp(meta: Meta, shapes: Shapes) -> MLP:
    """Build Zoology's MLP."""
    return MLP(d_model=meta["d_model"], hidden=_hidden(meta, shapes), activation=activation_of(meta))


def glu(meta: Meta, shapes: Shapes) -> GatedMLP:
    """Build Zoology's gated MLP."""
    hidden = _hidden(meta, shapes)
    return GatedMLP(meta["d_model"], hidden=hidden, activation=activation_of(meta), bias=True)


def _hidden(meta: Meta, shapes: Shapes, prefix: str = "") -> int:
    """Return the width; without `hidden_mult`, that of the weights."""
    multiple = size(meta, "hidden_mult", None)
    name = f"{prefix}fc1.weight"
    return shape_of(shapes, name)[0] if multiple is None else multiple * meta["d_model"]


def language_model(meta: Meta, shapes: Shapes) -> LanguageModel:
    """Build the model that a fixture's meta describes; the weights have what it does not say."""
    entries = {_ENTRIES.get(name, name): meta[name] for name in meta if not is_description(name)}
    expect_known(MODEL, entries, "config")
    names = _names(meta)
    vocab_size, d_model = shape_of(shapes, names.embedding)
    expect(meta["d_model"] == d_model, "d_model", meta["d_model"], f"{d_model}, as the weights have it")
    is_mamba = names is MAMBA_BLOCKS
    positions = shapes.get(f"{names.backbone}.embeddings.position_embeddings.weight", (0,))[0]
    is_fixed = not flag(meta, "learnable_word_embeddings", True)
    fields: dict[str, Any] = {
        **model_fields(read(MODEL, entries)),
        **schedule_of([spec for spec, _ in _layers(meta)]),
        **_mlp(meta, names, shapes),
        "d_model": d_model,
        "vocab_size": size(meta, "vocab_size", vocab_size),
        "norm": "rms" if is_mamba else "layer",
        "norm_eps": BLOCK_EPS,
        "final_norm": "layer",
        "max_positions": max(size(meta, "max_position_embeddings", positions, least=-1), 0),
        "freeze_embedding": is_fixed,
        "tie_embeddings": not is_fixed,
    }
    if is_mamba:
        fields |= {"embed_dropout": 0.0, "drop_path": 0.0}
    return LanguageModel(ModelConfig(**fields))


_ENTRIES = {"mixer": "sequence_mixer", "hybrid_configs": "sequence_mixer"}
"""Fixtures' names of config entries."""


def language_model_rules(meta: Meta) -> Rules:
    """Return the layout rules of `language_model`."""
    rules = [rules for _, rules in _layers(meta)]
    return tables.model_rules(rules, _names(meta), _state_mixer(meta)[1])


def language_model_dropped(meta: Meta) -> tuple[str, ...]:
    """Return the unused torch keys of the layers' mixers."""
    names, dropped = _names(meta), []
    for index, (name, keywords, prefix) in enumerate(_configs(meta)):
        below = f"{names.layer(index)}.{names.mixer}.{prefix}"
        dropped += [f"{below}{key}" for key in MIXERS[name].dropped_for(keywords)]
    return tuple(dropped)


def _names(meta: Meta) -> tables.Names:
    kind = meta.get("block_type", "TransformerBlock")
    expect_choice("block_type", kind, tuple(BLOCKS))
    return tables.NAMES["zoology" if BLOCKS[kind] is None else "zoology mamba"]


def _state_mixer(meta: Meta) -> tuple[str, Rules, Config]:
    """Return the kind of MLP, its rules and its keywords; training traces write "MLP hidden_mult 1"."""
    given: Any = meta.get("state_mixer", {"name": "zoology.mixers.mlp.MLP"})
    if isinstance(given, str):
        name, *words = given.split(" ")
        pairs = zip(words[::2], map(int, words[1::2]), strict=True)
        given = {"name": f"zoology.mixers.mlp.{name}", "kwargs": dict(pairs)}
    name, keywords = _module(given, "state_mixer")
    name = "torch.nn.Identity" if name.rpartition(".")[2] == "Identity" else name
    expect_choice("state_mixer", name, tuple(STATE_MIXERS))
    if name in tables_of_options():
        expect_known(name, keywords, "state_mixer.kwargs")
    kind, rules = STATE_MIXERS[name]
    return kind, rules, {"d_model": meta["d_model"], **keywords}


def _module(given: Any, where: str) -> tuple[str, Config]:
    """Return the class and the keywords of one of their ModuleConfigs."""
    expect(isinstance(given, dict), where, given, "a name and kwargs")
    for key in given:
        expect_choice(f"entry of {where}", key, ("name", "kwargs"))
    return str(given.get("name")), given.get("kwargs", {})


def _mlp(meta: Meta, names: tables.Names, shapes: Shapes) -> dict[str, Any]:
    kind, _, keywords = _state_mixer(meta)
    if names is MAMBA_BLOCKS:
        return {"mlp": "none"}
    if kind == "identity":
        return {"mlp": kind}
    hidden = _hidden(keywords, shapes, f"{names.layer(0)}.{names.mlp}.")
    return {"mlp": kind, "mlp_hidden": hidden, "mlp_activation": activation_of(keywords), "mlp_bias": True}


def _layers(meta: Meta) -> list[tuple[MixerSpec, Rules]]:
    """Return each layer's mixer and its layout rules."""
    layers = []
    for name, keywords, prefix in _configs(meta):
        rules = rekeyed(MIXERS[name].rules_for(keywords), (prefix + "{}").format)
        layers.append((MIXERS[name].spec(keywords), rules))
    return layers


def _configs(meta: Meta) -> list[tuple[str, Config, str]]:
    """Return class, keywords and key prefix of each layer's mixer; Hybrid's are used in turn."""
    given = meta.get("sequence_mixer", meta.get("mixer"))
    hybrid = meta.get("hybrid_configs")
    if given is not None:
        name, keywords = _module(given, "sequence_mixer")
        if name.endswith(".Hybrid"):
            expect_known(name, keywords, "sequence_mixer.kwargs")
            hybrid = keywords.get("configs")
    configs, found = hybrid or [given], []
    for index in range(size(meta, "n_layers", 2)):
        name, keywords = _module(configs[index % len(configs)], "sequence_mixer")
        fixed = BLOCKS.get(meta.get("block_type", ""))
        name = name if fixed is None else f"zoology.mixers.{fixed}"
        expect_choice("mixer of a zoology language model", name, tuple(MIXERS))
        expect_known(name, keywords, "sequence_mixer.kwargs")
        keywords = {"d_model": meta["d_model"], "layer_idx": index, **keywords}
        found.append((name, keywords, "mixer." if hybrid else ""))
    return found
