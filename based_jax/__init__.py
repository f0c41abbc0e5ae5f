"""Recall-efficient sequence models in JAX: Based, its baselines, and the ops beneath them."""

import importlib
from typing import TYPE_CHECKING, Any

from based_jax.compat import avoid_broken_fusions, import_flax_without_rich

avoid_broken_fusions()  # before anything can create an array
import_flax_without_rich()

from based_jax import convert, mixers, ops  # noqa: E402
from based_jax.convert import load_pretrained, push_to_hub, save_pretrained  # noqa: E402
from based_jax.generate import generate, stream  # noqa: E402
from based_jax.models import LanguageModel, ModelConfig, functional, param_count, presets  # noqa: E402
from based_jax.ops.core.platforms import lowering_for  # noqa: E402

if TYPE_CHECKING:
    from based_jax import evals, nnx

__version__ = "0.1.0"

# `generate` here is the function; the package of the same name is still importable as `based_jax.generate`.
__all__ = [
    "LanguageModel",
    "ModelConfig",
    "convert",
    "evals",
    "functional",
    "generate",
    "load_pretrained",
    "lowering_for",
    "mixers",
    "nnx",
    "ops",
    "param_count",
    "presets",
    "push_to_hub",
    "save_pretrained",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Import packages on first use: `evals` is on a higher floor; flax.nnx is slow to import, needs rich."""
    if name in ("evals", "nnx"):
        return importlib.import_module(f"based_jax.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
