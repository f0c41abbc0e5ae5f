"""Define the models that `decode` and `gpu` compare: Based, a Transformer++ and a Mamba of equal size.

The Transformer++ has its attention in plain JAX or, on a GPU, from cuDNN, with the same weights.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.generate.states import row_bytes
from based_jax.generate.weights import decoding_weights
from based_jax.models import LanguageModel, MixerSpec, ModelConfig, presets
from based_jax.models.language_model import param_shapes
from based_jax.typing import Params

BASED, ATTENTION, CUDNN, MAMBA = "based", "attention", "attention_cudnn", "mamba"

LABELS = {BASED: "Based", ATTENTION: "Transformer++", MAMBA: "Mamba"}
"""Models that `decode` compares -> their names in the paper."""

MODELS = tuple(LABELS)

SIZES = ("tiny", "360m", "1b")

INIT_STD = 0.02

DRAWN = 1_000_003
"""How many numbers `random_like` draws: a prime, so that the rows of a matrix differ."""

_PREFIXES = {BASED: "based", ATTENTION: "attn", CUDNN: "attn", MAMBA: "mamba"}


def model_config(name: str, size: str, dtype: str = "float32") -> ModelConfig:
    """Return the preset of a size that computes in `dtype`; the tiny Mamba, which has none, is made here."""
    mamba = (name, size) == (MAMBA, "tiny")
    config = _tiny_mamba() if mamba else presets.get(f"{_PREFIXES[name]}-{size}")
    # A Transformer++ on a CPU attends as it chooses by the length.
    implementations = (
        {CUDNN: "cudnn"} if jax.default_backend() == "cpu" else {ATTENTION: "xla", CUDNN: "cudnn"}
    )
    if chosen := implementations.get(name):
        how = {"implementation": chosen}
        mixers = {
            letter: MixerSpec(spec.mixer, {**spec.options, **how}) for letter, spec in config.mixers.items()
        }
        config = config.replace(mixers=mixers)
    return config.replace(dtype=dtype)


def _tiny_mamba() -> ModelConfig:
    """Return Mamba blocks of based-tiny's width, as many as come closest to its parameters."""
    mixers = {"M": MixerSpec("mamba", {"num_layers": 10})}
    return presets.get("based-tiny").replace(schedule="M" * 10, mixers=mixers, mlp="none", mlp_hidden=0)


def one_of_each(config: ModelConfig) -> ModelConfig:
    """Return the model with a single layer of each kind: quick to compile."""
    return config.replace(schedule="".join(sorted(set(config.schedule))))


def random_weights(config: ModelConfig) -> Params:
    """Return small random numbers for all parameters, in the dtypes in which decoding stores them."""
    return random_like(abstract_weights(config))


def random_like(shapes: Params) -> Params:
    """Return small random numbers of these shapes and dtypes.

    The time of a step does not depend on them, and initialising large models properly takes minutes. So only
    a few are drawn and repeated.
    """
    drawn = INIT_STD * np.random.default_rng(0).standard_normal(DRAWN, np.float32)
    return jax.tree.map(lambda x: jnp.asarray(np.resize(drawn.astype(x.dtype), x.shape)), shapes)


@cache
def abstract_weights(config: ModelConfig) -> Params:
    """Return shapes and dtypes: float32, or the model's dtype where it casts them (`generate.weights`).

    One layer of each kind is traced.
    """
    short = one_of_each(config)
    model, params = LanguageModel(short), {"params": dict(param_shapes(short))}
    shapes = jax.eval_shape(lambda params: decoding_weights(model, params, config.dtype)[1], params)
    rest = dict(shapes["params"])
    layers = {kind: rest.pop(f"layers_{i}") for i, kind in enumerate(short.schedule)}
    return {"params": rest | {f"layers_{i}": layers[kind] for i, kind in enumerate(config.schedule)}}


def state_bytes(config: ModelConfig, capacity: int) -> int:
    """Return the bytes of the state of one sequence with capacity for `capacity` tokens."""
    short = one_of_each(config)
    layers = jax.eval_shape(lambda: LanguageModel(short).init_state(1, capacity))
    return sum(
        config.schedule.count(kind) * row_bytes(layer)
        for kind, layer in zip(short.schedule, layers, strict=True)
    )
