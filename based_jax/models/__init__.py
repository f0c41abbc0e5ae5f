"""Language models: configuration, presets, blocks."""

from based_jax.models import presets
from based_jax.models.backbones import mqar_backbone
from based_jax.models.block import Block
from based_jax.models.classifier import SequenceClassifier
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.models.language_model import LanguageModel, param_count
from based_jax.models.mlp import MLP, GatedMLP
from based_jax.models.norm import LayerNorm, RMSNorm

__all__ = [
    "MLP",
    "Block",
    "GatedMLP",
    "LanguageModel",
    "LayerNorm",
    "MixerSpec",
    "ModelConfig",
    "RMSNorm",
    "SequenceClassifier",
    "mqar_backbone",
    "param_count",
    "presets",
]
