"""Recall-efficient sequence models in JAX: Based, its baselines, and the ops beneath them."""

from based_jax.compat import avoid_broken_fusions, import_flax_without_rich

avoid_broken_fusions()  # before anything can make an array
import_flax_without_rich()

from based_jax import convert, mixers, nnx, ops  # noqa: E402
from based_jax.convert import load_pretrained, save_pretrained  # noqa: E402
from based_jax.generate import generate, stream  # noqa: E402
from based_jax.models import LanguageModel, ModelConfig, functional, param_count, presets  # noqa: E402

__version__ = "0.1.0"

# `generate` is the function here; the package of the same name stays importable as `based_jax.generate`.
__all__ = [
    "LanguageModel",
    "ModelConfig",
    "convert",
    "functional",
    "generate",
    "load_pretrained",
    "mixers",
    "nnx",
    "ops",
    "param_count",
    "presets",
    "save_pretrained",
    "stream",
]
