"""Language models in directories: config.json beside weights under the authors' torch names.

A directory comes from the authors (their config.json, spec of Based 9.1) or from `save_pretrained`:

    {"format": "based_jax", "version": 1, "model": {...}}     ModelConfig.to_dict()

The weights are the same in both, so both kinds convert into each other by loading and saving.
"""

import functools
import json
import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax.convert import authors_config, hub
from based_jax.convert.fixtures import drop_tied_head, to_params
from based_jax.convert.layouts import Rules, Shapes, flatten, shapes_of, to_tensors
from based_jax.convert.state_dict import read_state_dict, write_safetensors
from based_jax.convert.tables import AUTHORS, MAMBA_MODEL, Names, mixer_rules, model_rules
from based_jax.models import LanguageModel, ModelConfig
from based_jax.typing import Params
from based_jax.validate import expect

FORMAT = "based_jax"
VERSION = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def load_pretrained(
    source: str | os.PathLike[str], *, dtype: str | None = None
) -> tuple[LanguageModel, Params]:
    """A language model and its parameters.

    Args:
        source: directory with config.json and weights (safetensors or torch's .bin, sharded or not), written
            by `save_pretrained` or by the authors' code; directory of a training run; or a hub id such as
            "hazyresearch/based-360m".
        dtype: dtype of the computation, e.g. "bfloat16"; None keeps the config's.

    Returns:
        The model, and ``{"params": ...}`` as plain float32 arrays whatever the file's dtype.

    Raises:
        ValueError: a config that is not understood; missing, unexpected or misshapen weights, or NaN among
            them, by name; an untied head where the config says tied.
        FileNotFoundError: no such directory, or nothing to fetch from the hub.
        ImportError: a hub id without huggingface_hub.
    """
    directory = find_directory(source)
    config = read_config(directory)
    tensors = read_state_dict(directory)
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    model_config = parse_config(config, shapes, directory)
    if dtype is not None:
        model_config = model_config.replace(dtype=dtype)
    rules = language_model_rules(model_config)
    if model_config.tie_embeddings:
        tensors = drop_tied_head(tensors, names_of(model_config))
    params = to_params(rules, tensors, language_model_shapes(model_config))
    return LanguageModel(model_config), params


def save_pretrained(directory: str | os.PathLike[str], model: LanguageModel, params: Params) -> None:
    """Write config.json and model.safetensors under the authors' torch names, a tied head too.

    Args:
        directory: created if need be; files of the same names are replaced.
        model: describes the parameters.
        params: ``{"params": ...}``; boxes with logical axis names are removed. Dtypes are kept.

    Raises:
        ValueError: parameters of another model.
    """
    tensors = state_dict(model, params)
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    write_safetensors(target / WEIGHTS, tensors, {"format": "pt"})
    description = {"format": FORMAT, "version": VERSION, "model": model.config.to_dict()}
    unfinished = target / f".{CONFIG}"
    unfinished.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    os.replace(unfinished, target / CONFIG)


def state_dict(model: LanguageModel, params: Params) -> dict[str, np.ndarray]:
    """The parameters as numpy arrays under the authors' torch names, a tied head too.

    Raises:
        ValueError: parameters of another model.
    """
    leaves = flatten(jax.device_get(nn.meta.unbox(params)["params"]))
    wanted = language_model_shapes(model.config)
    found = {path: tuple(leaf.shape) for path, leaf in leaves.items()}
    wrong = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    expect(not wrong, "params", wrong[:10], "this model's; these are missing, extra or misshapen")
    tensors = to_tensors(language_model_rules(model.config), leaves)
    names = names_of(model.config)
    return {names.head: tensors[names.embedding], **tensors}


def language_model_rules(config: ModelConfig) -> Rules:
    """The layout of any language model, of registered mixers without a table too."""
    paths = language_model_shapes(config)
    layers = []
    for index in range(config.num_layers):
        prefix = f"layers_{index}/mixer/"
        own = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        layers.append(mixer_rules(config.layer(index).mixer, own))
    return model_rules(layers, names_of(config))


def names_of(config: ModelConfig) -> Names:
    """What the authors' code calls a model's parts; Mamba models come from another code base."""
    mixers = {config.layer(index).mixer for index in range(config.num_layers)}
    return MAMBA_MODEL if config.mlp == "none" and mixers == {"mamba"} else AUTHORS


@functools.lru_cache(maxsize=16)  # tracing 36 layers takes about a second
def language_model_shapes(config: ModelConfig) -> Shapes:
    """Paths and shapes of a language model's parameters."""
    return types.MappingProxyType(shapes_of(LanguageModel(config), jnp.zeros((1, 1), jnp.int32)))


def find_directory(source: str | os.PathLike[str]) -> Path:
    """`source` itself if it is a directory (of a training run: its model/), else the hub's copy of it.

    Raises:
        FileNotFoundError, ImportError: see `load_pretrained`; a run that has not written model/ yet.
    """
    path = Path(source)
    if (path / "model" / CONFIG).is_file():
        return path / "model"
    if (path / "checkpoints").is_dir():
        raise FileNotFoundError(f"{source}: expected a finished run, but it has no model/{CONFIG}")
    if path.is_dir():
        return path
    if isinstance(source, str) and not Path(source).exists() and hub.is_hub_id(source):
        return hub.fetch(source)
    raise FileNotFoundError(f"{source}: expected a directory with {CONFIG} and weights, or a hub id")


def read_config(directory: Path) -> Mapping[str, Any]:
    """The parsed config.json.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not a JSON object.
    """
    path = directory / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory}: expected {CONFIG} and weights in this directory, found no {CONFIG}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON ({error})") from error
    expect(isinstance(config, dict), str(path), type(config).__name__, "a JSON object")
    return config


def parse_config(config: Mapping[str, Any], shapes: Shapes, directory: Path) -> ModelConfig:
    """Either kind of config.json to a `ModelConfig`; errors name the file."""
    try:
        if config.get("format") != FORMAT:
            return authors_config.model_config(config, shapes)
        expect(config.get("version") == VERSION, "version", config.get("version"), f"{VERSION}")
        expect(isinstance(config.get("model"), dict), "model", config.get("model"), "a JSON object")
        return ModelConfig.from_dict(config["model"])
    except ValueError as error:
        raise ValueError(f"{directory / CONFIG}: {error}") from error
