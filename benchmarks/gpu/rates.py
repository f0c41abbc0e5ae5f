"""Datasheet rates of GPUs: upper bounds for every program."""

from typing import NamedTuple


class Rates(NamedTuple):
    """Rates of one GPU."""

    kind: str
    """its name as CUDA reports it, or the beginning of that"""
    bandwidth: float
    """memory bandwidth, bytes/s"""
    products: float
    """dense bfloat16 FLOP/s of matrix products with float32 sums"""
    wide: float
    """dense FLOP/s of products of float32 numbers, truncated to tf32"""


GPUS = {
    "H200": Rates("NVIDIA H200", 4.8e12, 989e12, 494e12),
    "H100": Rates("NVIDIA H100", 3.35e12, 989e12, 494e12),
    "A100": Rates("NVIDIA A100", 2.039e12, 312e12, 156e12),
    "RTX 4090": Rates("NVIDIA GeForce RTX 4090", 1.008e12, 165e12, 83e12),
    "B200": Rates("NVIDIA B200", 8e12, 2250e12, 1125e12),
}
"""SXM modules, and 80 GB of the A100."""
