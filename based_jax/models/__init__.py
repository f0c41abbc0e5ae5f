"""Language models: configuration, presets, blocks."""

from based_jax.models import presets as presets
from based_jax.models.backbones import mqar_backbone as mqar_backbone
from based_jax.models.block import Block as Block
from based_jax.models.classifier import SequenceClassifier as SequenceClassifier
from based_jax.models.config import MixerSpec as MixerSpec
from based_jax.models.config import ModelConfig as ModelConfig
from based_jax.models.functional import Functional as Functional
from based_jax.models.functional import functional as functional
from based_jax.models.language_model import LanguageModel as LanguageModel
from based_jax.models.language_model import param_count as param_count
from based_jax.models.layers import MLP as MLP
from based_jax.models.layers import GatedMLP as GatedMLP
from based_jax.models.layers import LayerNorm as LayerNorm
from based_jax.models.layers import RMSNorm as RMSNorm
