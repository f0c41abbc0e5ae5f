"""Convert the config.json of fla's models to a `ModelConfig` (flash-linear-attention: models, layers).

GLA, RetNet, DeltaNet and Gated DeltaNet have pre-norm blocks of a mixer and a SwiGLU MLP, with RMS norms and
optionally softmax attention in some layers. Mamba-2's blocks are a norm and a mixer. The meaning of each
entry is in `options.json` and in docs/options.md.
"""

import math
from collections.abc import Callable
from typing import Any

from based_jax.convert.layouts import Shapes
from based_jax.convert.options import (
    Config,
    delta_heads,
    expect_known,
    expect_sizes,
    flag,
    heads_of,
    mixer_spec,
    model_fields,
    number,
    own_entries,
    read,
    schedule_of,
    size,
    with_defaults,
)
from based_jax.models import MixerSpec, ModelConfig
from based_jax.validate import expect, expect_choice

ALIASES = {
    "layer_norm_epsilon": "norm_eps",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "rms_norm_eps": "norm_eps",
    "time_step_floor": "dt_init_floor",
    "time_step_limit": "dt_limit",
    "time_step_max": "dt_max",
    "time_step_min": "dt_min",
}
"""Entries' names in older versions and in `transformers` -> current names."""

MLP_MULTIPLE = 256
"""Their MLP rounds its width up to a multiple of this."""


def fla_config(config: Config, shapes: Shapes) -> ModelConfig:
    """Build the `ModelConfig` of a checkpoint; see `configs.model_config`."""
    kind = config["model_type"]
    path, mixer, of_mixer = FAMILIES[kind]
    is_mamba2 = kind == "mamba2"
    form = mamba2_form(config) if is_mamba2 else {}
    config = own_entries(path, config, ALIASES)
    expect_sizes(config, "hidden_size", layers="num_hidden_layers")
    given = {name: value for name, value in (config | form).items() if value is not None}
    config = with_defaults(path, given)
    options = read(path, given)
    own = mixer_spec(mixer, options, **of_mixer(config))
    attention = {} if is_mamba2 else attention_layers(config)
    fields: dict[str, Any] = {
        **model_fields(options),
        **schedule_of([attention.get(index, own) for index in range(config["num_hidden_layers"])]),
        **({"mlp": "none"} if is_mamba2 else {"mlp": "gated", "mlp_hidden": _mlp_hidden(config)}),
        "norm": "rms",
        "pad_vocab_multiple": 1,
    }
    return ModelConfig(**fields)


def _mlp_hidden(config: Config) -> int:
    """Return the MLP's width as computed by their constructor."""
    wanted = int(config["hidden_size"] * number(config, "hidden_ratio", 4) * 2 / 3)
    return size(config, "intermediate_size", math.ceil(wanted / MLP_MULTIPLE) * MLP_MULTIPLE)


ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "sqrelu": "square_relu",
    "swish": "silu",
}
"""fla's name of a gate -> ours; fla's other activations need a bias or are not gates."""

TRANSFORMERS_ACTIVATIONS = {
    **{"relu": "relu", "relu2": "square_relu"},
    **{name: ACTIVATIONS[name] for name in ("sigmoid", "silu", "swish")},
}
"""Names of `transformers`, which fla's RetNet uses, -> ours; its "gelu" is the exact one."""

ATTENTION = "fla.layers.attn.Attention"


def expanded(width: int, given: Config) -> dict[str, Any]:
    """Return ratios of channels to the model's width, rounded down to whole channels as in older fla.

    Today's fla takes whole channels only, and so their nearest: 2,880 x 0.7 is 2,015.99... in floats.
    """
    found: dict[str, Any] = {}
    for name in ("expand_k", "expand_v"):
        exact = width * number(given, name, 1)
        channels = round(exact) if math.isclose(exact, round(exact)) else int(exact)
        expect(channels >= 1, name, given[name], "a factor that leaves at least one channel")
        found[name] = channels / width
    return found


def _gated_heads(config: Config, activations: dict[str, str]) -> dict[str, Any]:
    """Return the options that GLA and RetNet share."""
    options = expanded(config["hidden_size"], config)
    if (feature_map := config["feature_map"]) is not None:
        expect_choice("feature_map", feature_map, tuple(activations))
        options["qk_activation"] = activations[feature_map]
    return options | {"gate_activation": "silu" if flag(config, "use_output_gate", True) else None}


def gla_options(config: Config) -> dict[str, Any]:
    """Return our options of GLA."""
    taps = size(config, "conv_size", 4) if flag(config, "use_short_conv", False) else None
    return {**_gated_heads(config, ACTIVATIONS), "kernel_size": taps}


def _retnet(config: Config) -> dict[str, Any]:
    options = _gated_heads(config, TRANSFORMERS_ACTIVATIONS)
    return options | {"norm": "rms", "rotary_interleaved": False}


def _delta_net(config: Config) -> dict[str, Any]:
    return expanded(config["hidden_size"], config) | _taps(config)


def _taps(config: Config) -> dict[str, Any]:
    return {"kernel_size": size(config, "conv_size", 4) if flag(config, "use_short_conv", True) else None}


def _gated_delta_net(config: Config) -> dict[str, Any]:
    heads, width = size(config, "num_heads", 6), size(config, "head_dim", 256)
    value_heads, expand = size(config, "num_v_heads", heads), number(config, "expand_v", 2)
    values, wanted = width * expand, "whole channels"
    expect(values >= 1 and math.isclose(values, round(values), rel_tol=1e-5), "expand_v", expand, wanted)
    return _taps(config) | delta_heads(config["hidden_size"], heads, width, value_heads, round(values))


MAMBA2_OF_TODAY = (
    *("A_init_range", "D_has_hdim", "conv_init", "dt_init_floor", "dt_limit", "dt_max", "dt_min", "rmsnorm"),
)
"""Entries of Mamba-2 that only fla writes, since April 2026."""

MAMBA2_OF_OTHERS = (
    *("layer_norm_epsilon", "rms_norm"),
    *("time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "time_step_rank"),
)
"""Entries of Mamba-2 that `transformers` writes, and fla did before."""


def mamba2_form(config: Config) -> dict[str, Any]:
    """Return entries of Mamba-2's norm in place of those that the code which wrote a config does not read.

    fla of today reads `norm_before_gate`; `transformers` and older fla gate first, whatever the entry says.
    Older fla, which also writes `fuse_norm`, norms all channels together, as `transformers` did up to 5.18;
    the others norm those of each group. The names of entries show which code wrote the config.
    """
    of_today, of_others = (
        [name for name in names if name in config] for names in (MAMBA2_OF_TODAY, MAMBA2_OF_OTHERS)
    )
    for name in of_others:
        expect(not of_today, name, config[name], f"no entry of another code beside fla's {of_today[:1]}")
    for name, usual in {"norm_before_gate": False, "n_groups": 1}.items():
        fits = bool(of_today or of_others) or config.get(name) in (None, usual)
        expected = "for others, fla's dt_limit or transformers' time_step_limit, which show who wrote it"
        expect(fits, name, config.get(name), f"{usual}; {expected}")
    form: dict[str, Any] = {"norm_before_gate": False} if of_others else {}
    return form | ({"norm_groups": 1} if of_others and "fuse_norm" in config else {})


def _mamba2(config: Config) -> dict[str, Any]:
    channels, width = int(number(config, "expand", 2) * config["hidden_size"]), size(config, "head_dim", 64)
    groups, norm_groups = size(config, "n_groups", 1), config.get("norm_groups")
    for name, what, wanted in (
        ("intermediate_size", "", channels),
        ("num_heads", " / head_dim", channels // width),
    ):
        given = size(config, name, wanted)
        expect(given == wanted, name, given, f"expand * hidden_size{what} = {wanted}")
    norm_groups = None if norm_groups == groups else norm_groups
    return {"num_groups": groups, "norm_groups": norm_groups, **mamba2_ranges(config)}


def mamba2_ranges(config: Config) -> dict[str, float | None]:
    """Return our options of Mamba-2 for the bounds of its steps and of its decay at initialisation."""
    first, last = _limits(config, "A_init_range")
    return {**step_limits(config, "dt_limit"), "decay_min": first, "decay_max": last}


def step_limits(config: Config, name: str) -> dict[str, float | None]:
    """Return our options of Mamba-2 for an entry with the bounds of its steps."""
    low, high = _limits(config, name)
    return {"dt_least": low, "dt_most": None if math.isinf(high) else high}


def _limits(config: Config, name: str) -> tuple[float, float]:
    """Return two ascending numbers; `transformers` writes infinity as an object."""
    given: Any = config[name]
    wanted = "two numbers, 0 <= least <= most"
    expect(isinstance(given, list | tuple) and len(given) == 2, name, given, wanted)
    low, high = (math.inf if limit == {"__float__": "Infinity"} else limit for limit in given)
    fits = type(low) in (int, float) and type(high) in (int, float) and 0 <= low <= high
    expect(fits, name, given, wanted)
    return float(low), float(high)


FAMILIES: dict[str, tuple[str, str, Callable[[Config], dict[str, Any]]]] = {
    "delta_net": ("fla.models.DeltaNetConfig", "delta_net", _delta_net),
    "gated_deltanet": ("fla.models.GatedDeltaNetConfig", "gated_delta_net", _gated_delta_net),
    "gla": ("fla.models.GLAConfig", "gla", gla_options),
    "mamba2": ("fla.models.Mamba2Config", "mamba2", _mamba2),
    "retnet": ("fla.models.RetNetConfig", "retnet", _retnet),
}
"""`model_type` -> the class whose entries a config has, our mixer, and the function that converts entries
that are not one option of ours each."""


def attention_layers(config: Config) -> dict[int, MixerSpec]:
    """Return the softmax attention of the layers in `attn`, by layer index."""
    entry: Any = config.get("attn") or []
    count, found = config["num_hidden_layers"], dict[int, MixerSpec]()
    entries = entry if isinstance(entry, list) else [entry]
    for given in entries:
        expect(isinstance(given, dict), "attn", entry, "null, a JSON object, or a list of them")
        expect_known(ATTENTION, given, "attn")
        layers: Any = given.get("layers")
        fits = isinstance(layers, list) and all(type(i) is int and 0 <= i < count for i in layers)
        fits = fits and len({*layers, *found}) == len(layers) + len(found)
        expect(fits, "attn.layers", layers, f"a list of layers below {count}, each once")
        spec = _softmax(given)
        found |= dict.fromkeys(layers, spec)
    return found


def _softmax(given: Config) -> MixerSpec:
    options = {"num_kv_heads": heads_of(given, "attn."), **read(ATTENTION, given)}
    window = size(given, "window_size", None)
    if window is None:
        return mixer_spec("attention", options)
    return mixer_spec("sliding_window", options, left=window - 1)  # fla's window includes the query
