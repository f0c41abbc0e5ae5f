"""Mixers by name: make one, list them, ask what one can do."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from based_jax.fields import expect_fields
from based_jax.mixers.attention import Attention
from based_jax.mixers.base_conv import BaseConv
from based_jax.mixers.bigbird import BigBird
from based_jax.mixers.blocked_window import BlockedWindow
from based_jax.mixers.contract import Card, Mixer
from based_jax.mixers.conv_basis import ConvBasis
from based_jax.mixers.delta_net import DeltaNet
from based_jax.mixers.gated_conv import GatedConv
from based_jax.mixers.gated_delta_net import GatedDeltaNet
from based_jax.mixers.gla import GLA
from based_jax.mixers.h3 import H3
from based_jax.mixers.hyena import Hyena
from based_jax.mixers.hyper_attention import HyperAttention
from based_jax.mixers.hyper_feature_attention import HyperFeatureAttention
from based_jax.mixers.input_conv import InputConv
from based_jax.mixers.linear_attention import LinearAttention
from based_jax.mixers.linear_hyper_attention import LinearHyperAttention
from based_jax.mixers.linear_hyper_feature_attention import LinearHyperFeatureAttention
from based_jax.mixers.liquid_s4 import LiquidS4
from based_jax.mixers.long_conv import LongConv
from based_jax.mixers.mamba import Mamba
from based_jax.mixers.mamba2 import Mamba2
from based_jax.mixers.nystrom import Nystrom
from based_jax.mixers.option_docs import Option, attribute_docs
from based_jax.mixers.retnet import RetNet
from based_jax.mixers.rwkv4 import RWKV4
from based_jax.mixers.rwkv5 import RWKV5
from based_jax.mixers.rwkv7 import RWKV7
from based_jax.mixers.rwkv_channel_mix import RWKVChannelMix
from based_jax.mixers.scatterbrain import ScatterBrain
from based_jax.mixers.selected_attention import SelectedAttention
from based_jax.mixers.selective_lookups import SelectiveLookups
from based_jax.mixers.short_conv import ShortConv
from based_jax.mixers.sigmoid_lookups import SigmoidLookups
from based_jax.mixers.sliding_window import SlidingWindow
from based_jax.mixers.sma import SMA
from based_jax.validate import expect, expect_choice, nearest

_MIXERS: dict[str, type[Mixer]] = {
    "attention": Attention,
    "base_conv": BaseConv,
    "bigbird": BigBird,
    "blocked_window": BlockedWindow,
    "conv_basis": ConvBasis,
    "delta_net": DeltaNet,
    "gated_conv": GatedConv,
    "gated_delta_net": GatedDeltaNet,
    "gla": GLA,
    "h3": H3,
    "hyena": Hyena,
    "hyper_attention": HyperAttention,
    "hyper_feature_attention": HyperFeatureAttention,
    "input_conv": InputConv,
    "linear_attention": LinearAttention,
    "linear_hyper_attention": LinearHyperAttention,
    "linear_hyper_feature_attention": LinearHyperFeatureAttention,
    "liquid_s4": LiquidS4,
    "long_conv": LongConv,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "nystrom": Nystrom,
    "retnet": RetNet,
    "rwkv4": RWKV4,
    "rwkv5": RWKV5,
    "rwkv7": RWKV7,
    "rwkv_channel_mix": RWKVChannelMix,
    "scatterbrain": ScatterBrain,
    "selected_attention": SelectedAttention,
    "selective_lookups": SelectiveLookups,
    "short_conv": ShortConv,
    "sigmoid_lookups": SigmoidLookups,
    "sliding_window": SlidingWindow,
    "sma": SMA,
}


@dataclasses.dataclass(frozen=True)
class MixerInfo:
    """What a mixer is and can do."""

    name: str
    summary: str
    causal: bool
    """outputs do not depend on later inputs"""
    stateful: bool
    """can continue from a state"""
    packing: bool
    """honours segment_ids"""
    options: tuple[str, ...]
    """what `make` takes beside d_model; the function `options` explains them"""
    card: Card
    """equation, costs and sources"""

    def state_size(self, d_model: int, length: int, **options: Any) -> int:
        """Floats kept per sequence after `length` tokens, by the papers' formulas."""
        return make(self.name, d_model=d_model, **options).state_size(length)


def names() -> tuple[str, ...]:
    """All mixers, sorted."""
    return tuple(sorted(_MIXERS))


def make(name: str, *, d_model: int, **options: Any) -> Mixer:
    """Build a mixer; every mixer works with d_model alone.

    Args:
        name: one of `names()`.
        d_model: width of the input and output.
        options: see `options(name)`, or `help` of the mixer's class.

    Raises:
        ValueError: unknown name or option; the message lists the known ones, and the nearest if one is near.
            A value of another type or outside the range that its annotation gives (`based_jax.fields`).
    """
    expect_options(name, options)
    expect_fields(_MIXERS[name], {"d_model": d_model})
    return _MIXERS[name](d_model=d_model, **options)


def expect_options(name: str, options: Mapping[str, Any]) -> None:
    """Check a mixer's name and options, each by itself; what fits together, a mixer knows when it is called.

    Raises:
        ValueError: unknown name or option, or a value of another type or outside the range of its annotation.
    """
    expect_choice("mixer", name, names())
    known = _options(_MIXERS[name])
    for option in options:
        expected = "one of " + ", ".join(known) + nearest(option, known)
        expect(option in known, f"option of {name}", option, expected)
    expect_fields(_MIXERS[name], options)


def info(name: str) -> MixerInfo:
    """What the mixer called `name` can do, and the names of its options; `options(name)` explains them.

    Raises:
        ValueError: unknown name.
    """
    expect_choice("mixer", name, names())
    mixer = _MIXERS[name]
    return MixerInfo(
        name=name,
        summary=(mixer.__doc__ or "").strip().splitlines()[0],
        causal=mixer.causal,
        stateful=mixer.stateful,
        packing=mixer.packing,
        options=_options(mixer),
        card=mixer.card,
    )


def options(name: str) -> dict[str, Option]:
    """The options that `make` takes beside d_model: default and meaning of each, inherited ones last.

    Example:
        >>> import based_jax as bj
        >>> bj.mixers.options("gated_conv")["kernel_size"]
        Option(default=3, meaning='taps of the convolution.')

    Raises:
        ValueError: unknown name.
    """
    expect_choice("mixer", name, names())
    mixer = _MIXERS[name]
    meanings, own = attribute_docs(mixer.__doc__ or ""), mixer.__annotations__
    defaults = {field.name: field.default for field in dataclasses.fields(mixer)}
    ordered = sorted(_options(mixer), key=lambda option: option not in own)
    return {option: Option(defaults[option], meanings.get(option, "")) for option in ordered}


def _options(mixer: type[Mixer]) -> tuple[str, ...]:
    fields = (field.name for field in dataclasses.fields(mixer))
    return tuple(name for name in fields if name not in ("d_model", "parent", "name"))
