"""Sequence mixers as Flax modules: one file each, one contract (`contract.Mixer`)."""

from based_jax.mixers.attention import Attention
from based_jax.mixers.base_conv import BaseConv
from based_jax.mixers.bigbird import BigBird
from based_jax.mixers.blocked_window import BlockedWindow
from based_jax.mixers.contract import Mixer, Projection
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
from based_jax.mixers.option_docs import Option
from based_jax.mixers.registry import MixerInfo, info, make, names, options, register
from based_jax.mixers.retnet import RetNet
from based_jax.mixers.rwkv4 import RWKV4
from based_jax.mixers.rwkv5 import RWKV5
from based_jax.mixers.rwkv7 import RWKV7
from based_jax.mixers.rwkv_channel_mix import RWKVChannelMix
from based_jax.mixers.scatterbrain import ScatterBrain
from based_jax.mixers.selected_attention import SelectedAttention
from based_jax.mixers.selection_heads import auxiliary_loss
from based_jax.mixers.selective_lookups import SelectiveLookups
from based_jax.mixers.short_conv import ShortConv
from based_jax.mixers.sigmoid_lookups import SigmoidLookups
from based_jax.mixers.sliding_window import SlidingWindow
from based_jax.mixers.sma import SMA

__all__ = [
    "GLA",
    "H3",
    "RWKV4",
    "RWKV5",
    "RWKV7",
    "SMA",
    "Attention",
    "BaseConv",
    "BigBird",
    "BlockedWindow",
    "ConvBasis",
    "DeltaNet",
    "GatedConv",
    "GatedDeltaNet",
    "Hyena",
    "HyperAttention",
    "HyperFeatureAttention",
    "InputConv",
    "LinearAttention",
    "LinearHyperAttention",
    "LinearHyperFeatureAttention",
    "LiquidS4",
    "LongConv",
    "Mamba",
    "Mamba2",
    "Mixer",
    "MixerInfo",
    "Nystrom",
    "Option",
    "Projection",
    "RWKVChannelMix",
    "RetNet",
    "ScatterBrain",
    "SelectedAttention",
    "SelectiveLookups",
    "ShortConv",
    "SigmoidLookups",
    "SlidingWindow",
    "auxiliary_loss",
    "info",
    "make",
    "names",
    "options",
    "register",
]
