"""Small models with random parameters, directories of them, and other values for the entries of a config."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict

import based_jax as bj
from based_jax.convert.pretrained import language_model_shapes
from based_jax.convert.state_dict import write_safetensors
from based_jax.models import MixerSpec, ModelConfig
from tests.arrays import array


def small(**changes: Any) -> ModelConfig:
    """A config of one layer with a gated convolution, or with other fields."""
    fields = {"vocab_size": 11, "d_model": 16, "schedule": "M", "mixers": {"M": MixerSpec("gated_conv")}}
    return ModelConfig(**(fields | {"mlp_hidden": 8} | changes))


def drawn(model: bj.LanguageModel, seed: int = 0) -> dict:
    """Random parameters without compiling their initialisation."""
    rng = np.random.default_rng(seed)
    shapes = language_model_shapes(model.config)
    leaves = {path: array(rng.standard_normal(shape, np.float32)) for path, shape in shapes.items()}
    return {"params": unflatten_dict(leaves, sep="/")}


def write(directory: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    """Write config.json and the weights into a directory, and return it."""
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(directory / "model.safetensors", tensors)
    return directory


def changed(value: Any) -> Any:
    """Return a value of the same type that is not `value`; a number for None."""
    match value:
        case bool():
            return not value
        case int() | float():
            return 2 * value or 1
        case None:
            return 8
    return "other" if isinstance(value, str) else [2, 3]


def layers(config: bj.ModelConfig) -> list[Any]:
    """Return every layer's mixer with its defaults filled in."""
    specs = map(config.layer, range(config.num_layers))
    return [bj.mixers.make(spec.mixer, d_model=config.d_model, **spec.options) for spec in specs]
