"""Read a layer's mixer from the config.json of fla's models (flash-linear-attention, fla/layers)."""

import math
from collections.abc import Callable
from typing import Any

from based_jax.convert.config_values import Config, flag, number, size
from based_jax.convert.options import expect_known
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

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
    "relu": "relu",
    "relu2": "square_relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
}
"""Names of `transformers`, which fla's RetNet uses, -> ours; its "gelu" is the exact one."""

ATTENTION = "fla.layers.attn.Attention"


def _expanded(config: Config, name: str, default: float) -> float:
    """Return the ratio of channels to the model's width, rounded down to whole channels as in fla."""
    channels = int(config["hidden_size"] * number(config, name, default))
    expect(channels >= 1, name, config.get(name), "a factor that leaves at least one channel")
    return channels / config["hidden_size"]


def _gated_heads(config: Config, activations: dict[str, str]) -> dict[str, Any]:
    """Return the options that GLA and RetNet share."""
    options: dict[str, Any] = {
        "num_kv_heads": size(config, "num_kv_heads", None),
        "norm_affine": flag(config, "elementwise_affine", True),
        "norm_eps": number(config, "norm_eps", 1e-6),
    }
    if (feature_map := config.get("feature_map")) is not None:
        expect_choice("feature_map", feature_map, tuple(activations))
        options["qk_activation"] = activations[feature_map]
    if not flag(config, "use_output_gate", True):
        options["gate_activation"] = None
    return options


def _gla(config: Config) -> MixerSpec:
    options = _gated_heads(config, ACTIVATIONS)
    options["num_heads"] = size(config, "num_heads", 4)
    options |= {"expand_k": _expanded(config, "expand_k", 0.5), "expand_v": _expanded(config, "expand_v", 1)}
    if (least := config.get("clamp_min")) is not None:
        is_gate = type(least) in (int, float) and -math.inf < least <= 0
        expect(is_gate, "clamp_min", least, "a finite number, at most 0: logarithms of gates are")
        options["least_log_gate"] = float(least)
    if flag(config, "use_short_conv", False):
        options["kernel_size"] = size(config, "conv_size", 4)
    return MixerSpec("gla", options)


def _retnet(config: Config) -> MixerSpec:
    options = _gated_heads(config, TRANSFORMERS_ACTIVATIONS)
    options["num_heads"] = size(config, "num_heads", 8)
    options |= {"expand_k": _expanded(config, "expand_k", 1), "expand_v": _expanded(config, "expand_v", 2)}
    return MixerSpec("retnet", options | {"norm": "rms", "rotary_interleaved": False})


def _delta_heads(config: Config) -> dict[str, Any]:
    """Return the options that DeltaNet and Gated DeltaNet share."""
    taps = size(config, "conv_size", 4) if flag(config, "use_short_conv", True) else None
    negative = flag(config, "allow_neg_eigval", False)
    eps = number(config, "norm_eps", 1e-6)
    return {"kernel_size": taps, "allow_neg_eigval": negative, "norm_eps": eps}


def _delta_net(config: Config) -> MixerSpec:
    options = _delta_heads(config) | {"num_heads": size(config, "num_heads", 16)}
    options |= {"use_gate": flag(config, "use_gate", False), "use_beta": flag(config, "use_beta", True)}
    options |= {"expand_k": _expanded(config, "expand_k", 1), "expand_v": _expanded(config, "expand_v", 1)}
    for name, choices in {
        "qk_norm": ("l2", "sum"),
        "qk_activation": ("silu", "relu", "elu", "identity"),
    }.items():
        options[name] = config.get(name, choices[0])
        expect_choice(name, options[name], choices)
    return MixerSpec("delta_net", options)


def _gated_delta_net(config: Config) -> MixerSpec:
    heads, width = size(config, "num_heads", 6), size(config, "head_dim", 256)
    value_heads, expand = size(config, "num_v_heads", None), number(config, "expand_v", 2)
    values = width * expand
    expect(
        values >= 1 and math.isclose(values, round(values), rel_tol=1e-5),
        "expand_v",
        expand,
        "whole channels",
    )
    options = _delta_heads(config) | {"num_heads": heads, "use_gate": flag(config, "use_gate", True)}
    options["expand_k"] = heads * width / config["hidden_size"]
    options["expand_v"] = (value_heads or heads) * round(values) / config["hidden_size"]
    if value_heads not in (None, heads):
        options["num_v_heads"] = value_heads
    return MixerSpec("gated_delta_net", options)


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

    fla of today reads `norm_before_gate` and norms the channels of each group. `transformers` and older fla
    gate first, whatever the entry says, and norm all channels together. The names of other entries show
    which code wrote the config.

    Raises:
        ValueError: the names are of both, or of neither although this matters.
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
    return {"norm_before_gate": False, "norm_groups": 1} if of_others else {}


def _mamba2(config: Config) -> MixerSpec:
    expand, width = number(config, "expand", 2), size(config, "head_dim", 64)
    channels = int(expand * config["hidden_size"])
    groups, norm_groups = size(config, "n_groups", 1), size(config, "norm_groups", None)
    for name, wanted in {"intermediate_size": channels, "num_heads": channels // width}.items():
        what = {"intermediate_size": "", "num_heads": " / head_dim"}[name]
        given = size(config, name, wanted)
        expect(given == wanted, name, given, f"expand * hidden_size{what} = {wanted}")
    low, high = _limits(config, "dt_limit", (0.0, math.inf))
    options: dict[str, Any] = {
        "d_state": size(config, "state_size", 128),
        "head_dim": width,
        "num_groups": groups,
        "d_conv": size(config, "conv_kernel", 4),
        "expand": expand,
        "norm": flag(config, "rmsnorm", True),
        "norm_before_gate": flag(config, "norm_before_gate", False),
        "norm_eps": number(config, "norm_eps", 1e-5),
        "skip_per_channel": flag(config, "D_has_hdim", False),
        "bias": flag(config, "use_bias", False),
        "conv_bias": flag(config, "use_conv_bias", True),
        "dt_least": low,
        "dt_most": None if math.isinf(high) else high,
        "chunk_size": size(config, "chunk_size", 256),
    }
    if norm_groups not in (None, groups):
        options["norm_groups"] = norm_groups
    options |= dict(
        zip(("decay_min", "decay_max"), _limits(config, "A_init_range", (1.0, 16.0)), strict=True)
    )
    options |= {"dt_min": number(config, "dt_min", 0.001), "dt_max": number(config, "dt_max", 0.1)}
    return MixerSpec("mamba2", options | {"dt_floor": number(config, "dt_init_floor", 1e-4)})


def _limits(config: Config, name: str, default: tuple[float, float]) -> tuple[float, float]:
    """Return two ascending numbers; `transformers` writes infinity as an object."""
    given: Any = config.get(name) or default
    wanted = "two numbers, 0 <= least <= most"
    expect(isinstance(given, list | tuple) and len(given) == 2, name, given, wanted)
    low, high = (math.inf if limit == {"__float__": "Infinity"} else limit for limit in given)
    fits = type(low) in (int, float) and type(high) in (int, float) and 0 <= low <= high
    expect(fits, name, given, wanted)
    return float(low), float(high)


MIXERS: dict[str, Callable[[Config], MixerSpec]] = {
    "delta_net": _delta_net,
    "gated_deltanet": _gated_delta_net,
    "gla": _gla,
    "mamba2": _mamba2,
    "retnet": _retnet,
}
"""By `model_type`."""


def attention_layers(config: Config) -> dict[int, MixerSpec]:
    """Return the softmax attention of the layers in `attn`, by layer index.

    Raises:
        ValueError: an invalid entry, or a layer that does not exist or is listed twice.
    """
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
        spec = _attention(given)
        found |= dict.fromkeys(layers, spec)
    return found


def _attention(given: Config) -> MixerSpec:
    heads = size(given, "num_heads", 0)
    expect(heads > 0, "attn.num_heads", given.get("num_heads"), "a positive integer")
    options: dict[str, Any] = {
        "num_heads": heads,
        "num_kv_heads": size(given, "num_kv_heads", heads),
        "qkv_bias": flag(given, "qkv_bias", False),
        "rotary_base": number(given, "rope_theta", 10000.0),
    }
    window = size(given, "window_size", None)
    if window is None:
        return MixerSpec("attention", options)
    return MixerSpec("sliding_window", {"left": window - 1, **options})  # fla's window includes the query
