"""Realistic sizes of one layer, by name, shared by benchmarks and tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OpShape:
    """Sizes of an attention-like op; letters as in `based_jax.typing`."""

    batch: int
    """B, rows"""
    heads: int
    """H"""
    key_size: int
    """K, query/key channels per head of Taylor attention (the papers' d')"""
    value_size: int
    """V, value channels per head; also query/key channels of softmax attention"""


SHAPES = {
    "cpu": OpShape(batch=1, heads=4, key_size=16, value_size=64),
    "360m": OpShape(batch=1, heads=16, key_size=16, value_size=64),
    "1.3b": OpShape(batch=1, heads=16, key_size=16, value_size=112),
    "mqar": OpShape(batch=1, heads=1, key_size=16, value_size=64),
}
"""One layer of Based-360M and -1.3B, of the associative-recall models, and a quarter layer for a CPU."""

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Tokens per row that the papers' plots span."""
