"""Sequence mixers as Flax modules: one file each, one contract (`contract.Mixer`)."""

from based_jax.mixers.attention import Attention
from based_jax.mixers.contract import Mixer, Projection
from based_jax.mixers.gated_conv import GatedConv
from based_jax.mixers.linear_attention import LinearAttention
from based_jax.mixers.registry import MixerInfo, info, make, names
from based_jax.mixers.short_conv import ShortConv
from based_jax.mixers.sliding_window import SlidingWindow

__all__ = [
    "Attention",
    "GatedConv",
    "LinearAttention",
    "Mixer",
    "MixerInfo",
    "Projection",
    "ShortConv",
    "SlidingWindow",
    "info",
    "make",
    "names",
]
