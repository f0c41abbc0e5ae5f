"""Use mixers and models as Flax NNX modules."""

from based_jax.nnx.wrapped import Wrapped as Wrapped
from based_jax.nnx.wrapped import wrap as wrap
