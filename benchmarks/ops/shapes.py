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
    d_model: int
    """D, width of a model that has such a layer"""

    def __str__(self) -> str:
        return f"B={self.batch} H={self.heads} K={self.key_size} V={self.value_size}"


SHAPES = {
    "cpu": OpShape(batch=1, heads=4, key_size=16, value_size=64, d_model=256),
    "360m": OpShape(batch=1, heads=16, key_size=16, value_size=64, d_model=1024),
    "1.3b": OpShape(batch=1, heads=16, key_size=16, value_size=112, d_model=1792),
    "mqar": OpShape(batch=1, heads=1, key_size=16, value_size=64, d_model=64),
}
"""One layer of Based-360M and -1.3B, of the associative-recall models, and a quarter layer for a CPU."""

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Tokens per row that the papers' plots span."""
