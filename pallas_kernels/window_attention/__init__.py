"""Fused softmax attention in short causal windows (Based, section 4.2): forward and backward."""

from pallas_kernels.window_attention.blocks import Variant
from pallas_kernels.window_attention.function import MAX_LEFT, supports, window_attention

__all__ = ["MAX_LEFT", "Variant", "supports", "window_attention"]
