"""Fused Taylor linear attention: forward and backward, parallel over the sequence."""

from pallas_kernels.taylor_attention.function import (
    Variant,
    cannot_launch_gradient,
    is_slow,
    supports,
    taylor_attention,
)
from pallas_kernels.taylor_attention.mosaic_support import fastest, supports_mosaic

__all__ = [
    "Variant",
    "cannot_launch_gradient",
    "fastest",
    "is_slow",
    "supports",
    "supports_mosaic",
    "taylor_attention",
]
