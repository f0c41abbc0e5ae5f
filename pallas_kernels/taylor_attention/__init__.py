"""Fused Taylor linear attention: forward and backward, parallel over the sequence."""

from pallas_kernels.taylor_attention.function import Variant, is_slow, supports, taylor_attention
from pallas_kernels.taylor_attention.mosaic_support import fastest, supports_mosaic

__all__ = ["Variant", "fastest", "is_slow", "supports", "supports_mosaic", "taylor_attention"]
