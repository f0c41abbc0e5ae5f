"""Linear attention of Based's and Zoology's code, with Zoology's feature maps."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from based_jax.convert.references.mixer import Meta, expect_only
from based_jax.models import MixerSpec
from based_jax.validate import expect, expect_choice

FLA_EPS = 1e-6
"""Added to the normaliser by fla's kernels, whatever `eps` is."""


class TorchMap(NamedTuple):
    """Our feature map for one of Zoology's, and the arguments that affect its outputs."""

    ours: str
    reads: tuple[str, ...] = ()


_EXP = ("temp", "eps")
SHORT_NAMES = {
    "all_poly": "AllPolyMap",
    "cosformer": "CosFormerFeatureMap",
    "identity": "FeatureMap",
    "none": "FeatureMap",
    "performer": "PerformerFeatureMap",
    "pos_elu": "PosELU",
    "taylor_exp": "TaylorExp",
}
"""Other values of `feature_name` -> classes."""

FEATURE_MAPS = {
    "AllPolyMap": TorchMap("all_poly", ("output_dim", "learnable")),
    "CosFormerFeatureMap": TorchMap("cosformer", ("act_fun",)),
    "ExpDim": TorchMap("exp_dim", (*_EXP, "fullspace")),
    "ExpMaxNorm": TorchMap("exp_max", (*_EXP, "fullspace")),
    "ExpSumNorm": TorchMap("exp_sum", _EXP),
    "ExpSumNormHalfspace": TorchMap("exp_sum_half", ("eps",)),
    "FeatureMap": TorchMap("identity"),
    "FullSpaceMap": TorchMap("full_space", ("eps",)),
    "Identity": TorchMap("identity"),
    "PerformerFeatureMap": TorchMap("performer", ("expanded_dim",)),
    "PosELU": TorchMap("pos_elu", ("temp",)),
    "ReLU": TorchMap("relu", _EXP),
    "SoftmaxDim": TorchMap("softmax_dim", _EXP),
    "SoftmaxDimHalfspace": TorchMap("softmax_half", _EXP),
    "Square": TorchMap("square"),
    "SquaredMap": TorchMap("squared_map"),
    "TaylorExp": TorchMap("taylor", ("input_dim",)),
}
"""By the last part of a class's path."""

HALVES = {"exp_dim": "exp_half", "exp_max": "exp_max_half"}
"""Feature map -> its variant for `fullspace` = False, without a floor."""


def feature_map(name: str | None, kwargs: Mapping[str, Any], feature_dim: int) -> dict[str, Any]:
    """Return our options for one of Zoology's feature maps.

    Args:
        name: their `feature_name`, a short name or a class's path.
        kwargs: their `feature_kwargs`. A map accepts and ignores the arguments of all others.
        feature_dim: channels of a query.
    """
    last = (name or "none").rpartition(".")[2]
    last = SHORT_NAMES.get(last, last)
    expect_choice("feature_name", last, tuple(FEATURE_MAPS))
    _expect_axis(kwargs.get("head_dim_idx", -1))
    ours, reads = FEATURE_MAPS[last]
    read = {argument: kwargs[argument] for argument in reads if argument in kwargs}
    options: dict[str, Any] = {}
    if read.pop("act_fun", "relu") != "relu":
        expect(False, "feature_kwargs['act_fun']", kwargs["act_fun"], "'relu': others fail there")
    if not read.pop("fullspace", True):
        ours = HALVES[ours]
        read.pop("eps", None)
    if (temperature := read.pop("temp", None)) is not None:
        options["feature_scale"] = float(temperature)
    if (floor := read.pop("eps", None)) is not None:
        options["feature_floor"] = floor
    if (width := read.pop("input_dim", feature_dim)) != feature_dim:  # affects only Taylor's scale
        options["feature_scale"] = (feature_dim / width) ** 0.25
    for argument in ("expanded_dim", "output_dim"):
        if (count := read.pop(argument, None)) is not None:
            options["num_features"] = count
    if not read.pop("learnable", True):
        options["learned_map"] = False
    if ours != "taylor":
        options["feature_map"] = ours
    return options


def _expect_axis(axis: int) -> None:
    expect(axis in (-1, 3), "feature_kwargs['head_dim_idx']", axis, "-1 or 3, the channels' axis")


def based(meta: Meta) -> MixerSpec:
    """Convert Zoology's `Based`."""
    heads = meta.get("num_heads", 12)
    kv_heads = meta.get("num_key_value_heads", heads)
    expect(kv_heads == heads, "num_key_value_heads", kv_heads, f"{heads}, as num_heads: others fail there")
    expect_choice("train_view", meta.get("train_view", "linear"), ("linear", "quadratic"))
    is_causal = meta.get("causal", True) or meta.get("train_view") == "quadratic"
    expect(is_causal, "causal", meta.get("causal"), "true with train_view = 'linear'")
    width = meta.get("feature_dim", 16)
    options: dict[str, Any] = {"num_heads": heads, "feature_dim": width, "eps": meta.get("eps", 1e-12)}
    options |= uneven_heads(meta["d_model"], heads, None)
    if meta.get("apply_rotary", False):
        options |= {"rotary_fraction": 1.0, "rotary_base": float(meta.get("rope_theta", 10000.0))}
    kwargs = meta.get("feature_kwargs", {})
    return MixerSpec(
        "linear_attention", options | feature_map(meta.get("feature_name", "taylor_exp"), kwargs, width)
    )


def linear_attention(meta: Meta) -> MixerSpec:
    """Convert Based's `LinearAttention`; its parallel implementations, except fla's, differ only in speed."""
    heads, width = meta.get("num_heads", 16), meta.get("feature_dim", 16)
    form = meta.get("parallel_implementation", "quadratic")
    expect_choice("parallel_implementation", form, ("quadratic", "linear", "fla_parallel", "fla_chunk"))
    eps = FLA_EPS if form.startswith("fla") else meta.get("eps", 1e-12)
    options: dict[str, Any] = {"num_heads": heads, "feature_dim": width, "eps": eps}
    options |= uneven_heads(meta["d_model"], heads, meta.get("head_dim"))
    return MixerSpec("linear_attention", options | _own_map(meta.get("feature_map"), width))


def _own_map(given: Any, feature_dim: int) -> dict[str, Any]:
    """Return options for Based's `feature_map`: a description, or a config with its class."""
    if not isinstance(given, Mapping):
        return {}
    expect_only("feature_map", given, ("_target_", "input_dim"))
    path = str(given.get("_target_", "TaylorExp"))
    return feature_map(path, given, feature_dim)


def uneven_heads(d_model: int, heads: int, head_dim: int | None) -> dict[str, int]:
    """Return the width of value heads if it is not d_model / heads, which need not divide."""
    width = d_model // heads if head_dim is None else head_dim
    return {} if width * heads == d_model else {"head_dim": width}
