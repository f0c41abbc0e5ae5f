"""Convert torch mixers, which fixtures and configs describe by their class and its keywords.

`mixers.json` names each class's mixer here, its layout rules, and options that do not depend on keywords. The
table of the class in `options.json` says which option each keyword is. Functions convert keywords that are
not one option of ours each: those of Based's mixers, flash-attention's attention and Zoology's `Based` are
here, those of Zoology's other mixers in `zoology`.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.convert import tables
from based_jax.convert.layouts import Rules
from based_jax.convert.options import Config as Meta
from based_jax.convert.options import (
    expect_known,
    expect_supported,
    flag,
    fraction,
    heads_of,
    mixer_spec,
    number,
    read,
    size,
)
from based_jax.convert.options import tables as tables_of_options
from based_jax.convert.references import zoology
from based_jax.convert.references.ops import FLA_EPS
from based_jax.files import read_json
from based_jax.models import MixerSpec
from based_jax.ops import left_from_torch_window
from based_jax.validate import expect, expect_choice, nearest

BASE_CONV = "based.models.mixers.convolution.BaseConv"
ATTENTION = "flash_attn.modules.mha.MHA"

_MAPS: dict[str, dict[str, str]] = read_json(Path(__file__).with_name("feature_maps.json"))
SHORT_NAMES = _MAPS["short_names"]
"""Other values of `feature_name` -> classes."""
FEATURE_MAPS = _MAPS["classes"]
"""Last part of a class's path -> our feature map; what a class reads is in `options.json`."""
HALVES = _MAPS["halves"]
"""Feature map -> its variant for `fullspace` = False, without a floor."""

ZOOLOGY = "zoology.mixers.feature_maps."
TAYLOR = "based.models.mixers.linear_attention.TaylorExp"

PROJECTED = ("all_poly", "performer")
"""Feature maps that project `input_dim` channels: in their code, it has to be the queries' width."""


def _base_conv(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    return {"conv_bias": flag(meta, "conv_bias", flag(meta, "use_cuda", False))}


def _sliding(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    left = left_from_torch_window(size(meta, "window_size", 128, least=0))
    expect(meta.get("window_left", left) == left, "window_left", meta.get("window_left"), f"{left}")
    return {"left": left, **_heads(meta)}


def _mha(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    causal = flag(meta, "causal", False)
    expect(causal, "causal", causal, "true: attention is causal, and their default is false")
    window: Any = meta.get("window_size") or (-1, -1)
    is_pair = isinstance(window, list | tuple) and len(window) == 2 and all(type(n) is int for n in window)
    fits = is_pair and window[0] >= -1 and window[1] in (-1, 0)
    expect(fits, "window_size", window, "[left, -1] or [left, 0], left at least -1: attention is causal")
    more = {} if window[0] < 0 else {"mixer": "sliding_window", "left": window[0]}
    return _heads(meta) | more


def _heads(meta: Meta) -> dict[str, Any]:
    """Return options of packed attention that depend on its width, or that fixtures spell otherwise."""
    width = max(meta["d_model"] // heads_of(meta), 1)
    usual = width**-0.5
    is_described = meta.get("softmax_scale") == "head_dim**-0.5"
    scale = usual if is_described else number(meta, "softmax_scale", usual)
    options: dict[str, Any] = {
        "rotary_fraction": fraction(size(meta, "rotary_emb_dim", 0, least=0, most=width), width),
        "scale": None if abs(scale - usual) < 1e-12 * usual else scale,
        "qkv_bias": flag(meta, "qkv_proj_bias", flag(meta, "bias", True)),
        "out_bias": flag(meta, "out_proj_bias", flag(meta, "bias", True)),
    }
    spelled = {name: meta[name] for name in ("rotary_base", "rotary_interleaved") if name in meta}
    return options | spelled


def feature_map(
    name: str | None, kwargs: Mapping[str, Any], feature_dim: int, where: str = "feature_kwargs"
) -> dict[str, Any]:
    """Return our options for one of Zoology's or Based's feature maps.

    Args:
        name: their `feature_name`, a short name or a class's path.
        kwargs: arguments of its constructor.
        feature_dim: channels of a query.
        where: name of `kwargs` in messages.
    """
    paths = {path: path for path in tables_of_options() if path.rpartition(".")[2] in FEATURE_MAPS}
    short = {path.rpartition(".")[2]: path for path in paths if path.startswith(ZOOLOGY)}
    names = paths | short | {name: short[last] for name, last in SHORT_NAMES.items()}
    label = "feature_name" if where == "feature_kwargs" else f"{where}._target_"
    expect(name in (None, *names), label, name, f"one of {', '.join((*SHORT_NAMES, *paths))}")
    path = names[name or "none"]
    expect_known(path, kwargs, where)
    axis = kwargs.get("head_dim_idx", -1)
    expect(axis in (-1, 3), f"{where}['head_dim_idx']", axis, "-1 or 3, the channels' axis")
    table, ours = tables_of_options()[path], FEATURE_MAPS[path.rpartition(".")[2]]
    read = {argument: kwargs[argument] for argument in kwargs if table[argument].status == "renamed"}
    options: dict[str, Any] = {}
    if not flag(read, "fullspace", True):
        ours = HALVES[ours]
        read.pop("eps", None)
    if read.get("temp") is not None:
        options["feature_scale"] = number(read, "temp", 1.0)
    if read.get("eps") is not None:
        options["feature_floor"] = number(read, "eps", 0.0)
    if (width := size(read, "input_dim", feature_dim)) != feature_dim:
        expect(ours not in PROJECTED, f"{where}['input_dim']", width, f"{feature_dim}, the queries' width")
        options["feature_scale"] = (feature_dim / width) ** 0.25  # Taylor's map divides by it
    for argument in ("expanded_dim", "output_dim"):
        if (count := size(read, argument, None)) is not None:
            options["num_features"] = count
    if not flag(read, "learnable", True):
        options["learned_map"] = False
    return options | {"feature_map": ours}


def _based(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    heads, width = options["num_heads"], size(meta, "feature_dim", 16)
    kv_heads = size(meta, "num_key_value_heads", heads)
    expect(kv_heads == heads, "num_key_value_heads", kv_heads, f"{heads}, as num_heads: others fail there")
    expect_choice("train_view", meta.get("train_view", "linear"), ("linear", "quadratic"))
    is_causal = flag(meta, "causal", True) or meta.get("train_view") == "quadratic"
    expect(is_causal, "causal", meta.get("causal"), "true with train_view = 'linear'")
    has_rotary = flag(meta, "apply_rotary", False)
    kwargs = meta.get("feature_kwargs", {})
    of_map = feature_map(meta.get("feature_name", "taylor_exp"), kwargs, width)
    return uneven_heads(meta["d_model"], heads, None) | {"rotary_fraction": float(has_rotary)} | of_map


def _linear_attention(meta: Meta, options: dict[str, Any]) -> dict[str, Any]:
    """Convert Based's `LinearAttention`; its parallel implementations, except fla's, differ only in speed."""
    heads, width = size(meta, "num_heads", 16), size(meta, "feature_dim", 16)
    form = meta.get("parallel_implementation", "quadratic")
    expect_choice("parallel_implementation", form, ("quadratic", "linear", "fla_parallel", "fla_chunk"))
    more = uneven_heads(meta["d_model"], heads, size(meta, "head_dim", None))
    given = meta.get("feature_map")
    if isinstance(given, Mapping):  # else a description, or their default, Taylor's
        path = str(given.get("_target_", TAYLOR))
        arguments = {name: value for name, value in given.items() if name != "_target_"}
        more |= feature_map(path, arguments, width, "feature_map")
    if form.startswith("fla"):  # whose kernels have Taylor's map of the queries' width inside
        more = uneven_heads(meta["d_model"], heads, size(meta, "head_dim", None)) | {"eps": FLA_EPS}
    return more


def uneven_heads(d_model: int, heads: int, head_dim: int | None) -> dict[str, Any]:
    """Return the width of value heads: None if it is d_model / heads, which need not divide."""
    width = d_model // heads if head_dim is None else head_dim
    return {"head_dim": None if width * heads == d_model else width}


CONVERTED: dict[str, Callable[[Meta, dict[str, Any]], Mapping[str, Any]]] = {
    **zoology.CONVERTED,
    BASE_CONV: _base_conv,
    "based.models.mixers.slide_attention.SlidingAttention": _sliding,
    "based.models.mixers.mha.MHA": _mha,
    ATTENTION: _mha,
    "based.models.mixers.linear_attention.LinearAttention": _linear_attention,
    "zoology.mixers.based.Based": _based,
}
"""Path of a class -> function of its keywords, and of the options read from them: further options.

An entry `mixer` replaces the mixer."""


class TorchMixer(NamedTuple):
    """How to convert a torch mixer, which is identified by the import path of its class."""

    path: str
    mixer: str
    """our mixer"""
    rules: str
    """its layout rules: code base/module of `tables`"""
    fixed: Mapping[str, Any] = {}
    """options that do not depend on the keywords"""

    def spec(self, meta: Meta) -> MixerSpec:
        """Return our mixer and its options, given the keywords."""
        options = {**read(self.path, meta), **self.fixed}
        if self.path in CONVERTED:
            options |= CONVERTED[self.path](meta, options)
        return mixer_spec(options.pop("mixer", self.mixer), options)

    def rules_for(self, meta: Meta) -> Rules:
        """Return the layout rules of the parameters, given the keywords."""
        return tables.rules_of([self.rules, *zoology.more_rows(self.mixer, meta)])

    def dropped_for(self, meta: Meta) -> tuple[str, ...]:
        """Return the unused torch keys: constants, and aliases of shared tensors."""
        return zoology.dropped(self.mixer, meta)


MIXERS = {
    path: TorchMixer(path, **entry) for path, entry in read_json(Path(__file__).with_suffix(".json")).items()
}

_TABLES: dict[str, Any] = read_json(Path(__file__).with_name("metas.json"))
ALIASES: dict[str, str] = _TABLES["aliases"]
"""Path of a class -> path of a class with the same arguments."""
DESCRIPTIONS: list[str] = _TABLES["descriptions"]
"""Entries of a meta that are no arguments: how its numbers were computed, and what follows from arguments."""
SPELLINGS: dict[str, list[str]] = _TABLES["spellings"]
"""Fixtures' own names of a class's arguments."""

_MEASURED = re.compile(
    r"(err|tol|causal|min|max|measured)(32|64|_\w+)?|\w+_(bits|len|steps|seed|tokens|measured)"
)


def is_description(name: str) -> bool:
    """Return whether an entry of a meta says how its numbers were computed, or is derived from arguments."""
    return name in DESCRIPTIONS or _MEASURED.fullmatch(name) is not None


def expect_arguments(path: str, given: Mapping[str, Any]) -> None:
    """Check the arguments with which a class was built against the tables of `convert.options`.

    Args:
        path: the class, as named in `reference_modules`; a class without a table is not checked.
        given: arguments, and descriptions. Text of several words counts as a description.
    """
    name_of_class = path.rpartition(".")[2]
    table = tables_of_options().get(ALIASES.get(path, path))
    if table is None:
        return
    for name, value in given.items():
        if is_description(name) or name in SPELLINGS.get(name_of_class, ()):
            continue
        if name in table:
            expect_supported(table[name], value)
        elif not (isinstance(value, str) and " " in value):
            expected = f"one of {', '.join(sorted(table))}{nearest(name, list(table))}"
            expect(False, f"argument of {name_of_class}", name, expected)
