"""Recall-efficient sequence models in JAX: Based, its baselines, and the ops beneath them."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from based_jax.broken_fusions import avoid_broken_fusions
from based_jax.imports import on_first_use

avoid_broken_fusions()  # before anything can create an array

if TYPE_CHECKING:
    from based_jax import convert, evals, mixers, models, nnx, ops, typing
    from based_jax.convert import load_pretrained, save_pretrained
    from based_jax.generate import generate, stream
    from based_jax.models import LanguageModel, ModelConfig, functional, param_count, presets
    from based_jax.ops import feature_maps
    from based_jax.ops.core.platforms import lowering_for

__version__ = "0.1.0"

__all__ = [
    "LanguageModel",
    "ModelConfig",
    "convert",
    "evals",
    "feature_maps",
    "functional",
    "generate",
    "load_pretrained",
    "lowering_for",
    "mixers",
    "models",
    "nnx",
    "ops",
    "param_count",
    "presets",
    "save_pretrained",
    "stream",
    "typing",
]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "": ("convert", "evals", "mixers", "models", "nnx", "ops", "typing"),
        "convert": ("load_pretrained", "save_pretrained"),
        "generate": ("generate", "stream"),
        "models": ("LanguageModel", "ModelConfig", "functional", "param_count", "presets"),
        "ops": ("feature_maps",),
        "ops.core.platforms": ("lowering_for",),
    },
)


class _Root(ModuleType):
    """A module whose `generate` is the function, although a package of this name can be imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "generate" or not isinstance(value, ModuleType):  # which the import of a package sets
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root
