"""Fused Taylor linear attention: forward and backward, parallel over the sequence."""

from pallas_kernels.taylor_attention.function import Variant, is_slow, supports, taylor_attention

__all__ = ["Variant", "is_slow", "supports", "taylor_attention"]
