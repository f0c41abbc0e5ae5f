"""Mixers and models as modules of Flax NNX."""

from based_jax.nnx.wrapped import Wrapped as Wrapped
from based_jax.nnx.wrapped import wrap as wrap
