"""Sequence mixers as Flax modules: one file each, one contract (`contract.Mixer`)."""

from based_jax.mixers.attention import Attention
from based_jax.mixers.base_conv import BaseConv
from based_jax.mixers.blocked_window import BlockedWindow
from based_jax.mixers.contract import Mixer, Projection
from based_jax.mixers.delta_net import DeltaNet
from based_jax.mixers.gated_conv import GatedConv
from based_jax.mixers.gated_delta_net import GatedDeltaNet
from based_jax.mixers.gla import GLA
from based_jax.mixers.h3 import H3
from based_jax.mixers.hyena import Hyena
from based_jax.mixers.linear_attention import LinearAttention
from based_jax.mixers.liquid_s4 import LiquidS4
from based_jax.mixers.long_conv import LongConv
from based_jax.mixers.mamba import Mamba
from based_jax.mixers.mamba2 import Mamba2
from based_jax.mixers.registry import MixerInfo, info, make, names
from based_jax.mixers.retnet import RetNet
from based_jax.mixers.rwkv4 import RWKV4
from based_jax.mixers.rwkv5 import RWKV5
from based_jax.mixers.rwkv7 import RWKV7
from based_jax.mixers.rwkv_channel_mix import RWKVChannelMix
from based_jax.mixers.short_conv import ShortConv
from based_jax.mixers.sliding_window import SlidingWindow

__all__ = [
    "GLA",
    "H3",
    "RWKV4",
    "RWKV5",
    "RWKV7",
    "Attention",
    "BaseConv",
    "BlockedWindow",
    "DeltaNet",
    "GatedConv",
    "GatedDeltaNet",
    "Hyena",
    "LinearAttention",
    "LiquidS4",
    "LongConv",
    "Mamba",
    "Mamba2",
    "Mixer",
    "MixerInfo",
    "Projection",
    "RWKVChannelMix",
    "RetNet",
    "ShortConv",
    "SlidingWindow",
    "info",
    "make",
    "names",
]
