"""The laws of recurrent and attention layers for a layer of any framework: NumPy arrays in and out.

This package needs NumPy only; `of_mixer`, which makes a `Layer` of a Flax mixer, needs JAX when it is used.
"""

from typing import TYPE_CHECKING

from based_jax.first_use import on_first_use
from based_jax.testing.layers.check import Outcome, Report, check_layer
from based_jax.testing.layers.laws import FEATURES, LAWS, Layer

if TYPE_CHECKING:
    from based_jax.testing.layers.mixers import of_mixer

__all__ = ["FEATURES", "LAWS", "Layer", "Outcome", "Report", "check_layer", "of_mixer"]

__getattr__, __dir__ = on_first_use(__name__, {"mixers": ("of_mixer",)})
