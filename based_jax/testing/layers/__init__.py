"""The laws of recurrent and attention layers for a layer of any framework: NumPy arrays in and out."""

from based_jax.testing.layers.check import Outcome, Report, check_layer
from based_jax.testing.layers.laws import FEATURES, LAWS, Layer

__all__ = ["FEATURES", "LAWS", "Layer", "Outcome", "Report", "check_layer"]
