"""Gated linear attention without its convolutions."""

from based_jax.testing import laws
from tests.mixers.built import runner


def test_it_can_be_cut_without_convolutions():
    """The contract's case has them."""
    laws.split_law(runner("gla", d_model=12, num_heads=3), laws.inputs(2, 9, 12, 0), [4, 5])
