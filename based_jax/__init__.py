"""Recall-efficient sequence models in JAX: Based, its baselines, and the ops beneath them."""

from based_jax import mixers, ops
from based_jax.models import LanguageModel, ModelConfig, param_count, presets

__all__ = ["LanguageModel", "ModelConfig", "mixers", "ops", "param_count", "presets"]
