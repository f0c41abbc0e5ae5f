"""Count the floating-point operations of a training step, without those that its program repeats."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from based_jax.models import LanguageModel, ModelConfig
from based_jax.models.language_model import param_shapes
from based_jax.profile.operations import Operations, count_operations
from based_jax.published.flops import training_flops


def training_operations(config: ModelConfig, length: int, batch_size: int = 1) -> Operations:
    """Count the operations of the forward and backward pass, by tracing the whole model.

    Raises:
        ValueError: a length beyond the model's learned positions or long filters.
    """
    model = LanguageModel(config)
    tokens = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
    params = {"params": dict(param_shapes(config))}

    def loss(params: Any, tokens: Any) -> Any:
        logits: Any = model.apply(params, tokens)[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    return count_operations(jax.value_and_grad(loss), params, tokens)


def model_flops(config: ModelConfig, length: int) -> float:
    """Return the operations of a training step on one sequence, as used for a device's utilization.

    The papers' formula if they have one for every layer, else the matrix products and Fourier transforms of
    the traced program without recomputation, the operations that a device's peak rate refers to. Errors are
    those of `training_operations`.
    """
    if (published := training_flops(config, length)) is not None:
        return published
    config = config.replace(remat="none", scan_layers=False)
    first, *_ = kinds = sorted(set(config.schedule))

    def products(schedule: str) -> float:
        counted = training_operations(config.replace(schedule=schedule), length)
        return counted.products + counted.transforms

    # Layers add up, so one of each kind is traced instead of all.
    one = products(first)
    layers = {kind: products(first + kind) - one for kind in kinds}
    return one - layers[first] + sum(layers[kind] for kind in config.schedule)
