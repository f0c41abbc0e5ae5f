"""Sequence mixers as Flax modules: one file per mixer, all with the interface `contract.Mixer`."""

from based_jax.mixers.attention import Attention as Attention
from based_jax.mixers.base_conv import BaseConv as BaseConv
from based_jax.mixers.bigbird import BigBird as BigBird
from based_jax.mixers.blocked_window import BlockedWindow as BlockedWindow
from based_jax.mixers.contract import Context as Context
from based_jax.mixers.contract import Mixer as Mixer
from based_jax.mixers.contract import Projection as Projection
from based_jax.mixers.contract import register as register
from based_jax.mixers.conv_basis import ConvBasis as ConvBasis
from based_jax.mixers.delta_net import DeltaNet as DeltaNet
from based_jax.mixers.gated_conv import GatedConv as GatedConv
from based_jax.mixers.gated_delta_net import GatedDeltaNet as GatedDeltaNet
from based_jax.mixers.gla import GLA as GLA
from based_jax.mixers.h3 import H3 as H3
from based_jax.mixers.hyena import Hyena as Hyena
from based_jax.mixers.hyper_attention import HyperAttention as HyperAttention
from based_jax.mixers.hyper_feature_attention import HyperFeatureAttention as HyperFeatureAttention
from based_jax.mixers.input_conv import InputConv as InputConv
from based_jax.mixers.linear_attention import LinearAttention as LinearAttention
from based_jax.mixers.linear_hyper_attention import LinearHyperAttention as LinearHyperAttention
from based_jax.mixers.linear_hyper_feature_attention import (
    LinearHyperFeatureAttention as LinearHyperFeatureAttention,
)
from based_jax.mixers.linearized_attention import LinearizedAttention as LinearizedAttention
from based_jax.mixers.liquid_s4 import LiquidS4 as LiquidS4
from based_jax.mixers.long_conv import LongConv as LongConv
from based_jax.mixers.mamba import Mamba as Mamba
from based_jax.mixers.mamba2 import Mamba2 as Mamba2
from based_jax.mixers.mixer_options import Option as Option
from based_jax.mixers.mlp import MLPLayer as MLPLayer
from based_jax.mixers.nystrom import Nystrom as Nystrom
from based_jax.mixers.registry import MixerInfo as MixerInfo
from based_jax.mixers.registry import import_mixer as import_mixer
from based_jax.mixers.registry import info as info
from based_jax.mixers.registry import make as make
from based_jax.mixers.registry import names as names
from based_jax.mixers.registry import options as options
from based_jax.mixers.retnet import RetNet as RetNet
from based_jax.mixers.rwkv4 import RWKV4 as RWKV4
from based_jax.mixers.rwkv5 import RWKV5 as RWKV5
from based_jax.mixers.rwkv7 import RWKV7 as RWKV7
from based_jax.mixers.rwkv_channel_mix import RWKVChannelMix as RWKVChannelMix
from based_jax.mixers.scatterbrain import ScatterBrain as ScatterBrain
from based_jax.mixers.selected_attention import SelectedAttention as SelectedAttention
from based_jax.mixers.selection_heads import auxiliary_loss as auxiliary_loss
from based_jax.mixers.selective_lookups import SelectiveLookups as SelectiveLookups
from based_jax.mixers.short_conv import ShortConv as ShortConv
from based_jax.mixers.sigmoid_lookups import SigmoidLookups as SigmoidLookups
from based_jax.mixers.sliding_window import SlidingWindow as SlidingWindow
from based_jax.mixers.sma import SMA as SMA
