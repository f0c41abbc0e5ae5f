"""Linearize attention: replace it, and train the maps of older tokens to give the outputs of the original.

    loss = mean over layers of  sum_i |y_i - t_i|^2 / sum_i |t_i|^2

t is a layer's output with attention in full and y that of its replacement, both of the original's activations
(attention transfer; LoLCATs, Zhang et al. 2024, 2410.10254). So layers do not see each other's errors and no
gradient passes between them. Another run may fine-tune the result on text.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import lax

from based_jax.mixers.linearized_attention import MAPS, LinearizedAttention
from based_jax.models import LanguageModel, ModelConfig
from based_jax.models.config import MixerSpec
from based_jax.training.optimizer import names_of
from based_jax.training.step import Batch, counted, next_token_losses
from based_jax.typing import Array, Params
from based_jax.validate import expect

ERRORS = "errors"
"""Flax collection of the layers' losses."""

_NOT_KEPT = ("dropout", "implementation")
"""Options of `attention` that its replacement has no use for, or gives another meaning."""


def linearized(config: ModelConfig, layers: Collection[int] | None, **options: Any) -> ModelConfig:
    """Return the config with `linearized_attention` in place of full attention.

    Args:
        layers: which layers; None for all with full attention.
        options: of the new mixer, besides those that it shares with the old one.

    Raises:
        ValueError: a layer without full attention, or no layer that has it.
    """
    specs = [config.mixers[letter] for letter in config.schedule]
    full = [index for index, spec in enumerate(specs) if spec.mixer == "attention"]
    kinds = ", ".join(sorted({spec.mixer for spec in specs}))
    expect(bool(full), "from", kinds, "a model with a layer of full attention (the mixer `attention`)")
    chosen = full if layers is None else sorted(set(layers))
    for layer in chosen:
        expected = f"layers with full attention: {', '.join(map(str, full))}"
        expect(layer in full, "layers", layer, expected)
    by_spec: dict[MixerSpec, list[int]] = {}
    for layer in chosen:
        by_spec.setdefault(specs[layer], []).append(layer)
    for spec, same in by_spec.items():
        kept = {name: value for name, value in spec.options.items() if name not in _NOT_KEPT}
        config = config.with_mixer("linearized_attention", same, **kept, **options)
    return config


def new_layers(config: ModelConfig, original: ModelConfig) -> frozenset[str]:
    """Return the names of the layers whose mixers differ, as "layers_0"; others may be linearized too."""
    layers = range(config.num_layers)
    return frozenset(f"layers_{index}" for index in layers if config.layer(index) != original.layer(index))


def transfer_losses(
    model: nn.Module, params: Params, batch: Batch, layers: frozenset[str], **options: Any
) -> tuple[tuple[Array, Array], Mapping[str, Any]]:
    """Compute the loss above over these layers, as a `based_jax.training.step.Losses`.

    Noise of training (`options`) is left out: dropout would hide what the maps can learn. Gradients are those
    of the maps. The sums are those of a batch, or with `accumulate` those of each micro-batch, whose losses
    are averaged.
    """
    del options
    real = batch.get("mask")

    def compare(layer: LinearizedAttention, y: Array, target: Array) -> None:
        target = lax.stop_gradient(target)
        layer.sow(ERRORS, "share", _share_of_squares(y - target, target, real))

    how: dict[str, Any] = {"segment_ids": batch.get("segment_ids"), "mask": real, "mutable": [ERRORS]}
    with _in_full(layers, compare):
        _, collected = model.apply(with_maps_alone(params, layers), batch["inputs"], method="hidden", **how)
    shares = jnp.stack(jax.tree.leaves(collected[ERRORS]))
    count = jnp.sum(counted(batch)).astype(shares.dtype)
    return (shares.mean() * count, count), {}


def losses_in_full(
    model: LanguageModel, params: Params, batch: Batch, layers: frozenset[str], **options: Any
) -> tuple[tuple[Array, Array], Mapping[str, Any]]:
    """Compute the original model's losses of text, with the parameters of the linearized one."""
    with _in_full(layers):
        return next_token_losses(model, params, batch, **options)


@contextlib.contextmanager
def _in_full(
    layers: frozenset[str], compare: Callable[[LinearizedAttention, Array, Array], None] | None = None
) -> Iterator[None]:
    """Let these layers attend in full; `compare` gets each one, its own outputs and those in full."""

    def attend(following: Any, args: Any, kwargs: Any, call: Any) -> Any:
        layer = call.module
        is_mixer = isinstance(layer, LinearizedAttention) and not layers.isdisjoint(layer.path)
        if not is_mixer or call.method_name != "mix":
            return following(*args, **kwargs)
        x, _, context = args
        target = layer.in_full(x, context)
        if compare is not None:
            compare(layer, following(*args, **kwargs)[0], target)
        return target, None

    with nn.intercept_methods(attend):
        yield


def _share_of_squares(error: Array, target: Array, real: Array | None) -> Array:
    squares = [jnp.sum(jnp.square(x.astype(jnp.float32)), axis=-1) for x in (error, target)]
    if real is not None:
        squares = [jnp.where(real, x, 0) for x in squares]
    return squares[0].sum() / jnp.maximum(squares[1].sum(), jnp.finfo(jnp.float32).tiny)


def is_map(path: Any, layers: frozenset[str]) -> bool:
    """Return whether the parameter at a path of a tree is one of the maps of these layers."""
    names = names_of(path)
    return names[-1] in MAPS and not layers.isdisjoint(names)


def with_maps_alone(params: Params, layers: frozenset[str]) -> Params:
    """Return the parameters, of which only the maps have gradients."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if is_map(path, layers) else lax.stop_gradient(leaf), params
    )


def train_maps(
    optimizer: optax.GradientTransformation, layers: frozenset[str]
) -> optax.GradientTransformation:
    """Restrict `optimizer` to the maps; frozen weights have no gradients and no moments."""

    def mask(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: is_map(path, layers), params)

    return optax.masked(optimizer, mask)
