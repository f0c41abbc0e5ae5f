"""Load and save language models: a directory with config.json, and weights under the authors' torch names.

    native         config.json {"format": "based_jax", "version": 1, "model": ModelConfig.to_dict()}
                   model.safetensors
    authors        config.json as their loaders read it; pytorch_model.bin or model.safetensors
    transformers   config.json and weights of models of `transformers` (`transformers`)
    fla            config.json and weights of flash-linear-attention's models (`fla`)

`load_pretrained` reads all four. `save_pretrained` writes the first, and the others like a checkpoint that
exists (`written_like`). Tensors have the same names, shapes and values in the first two, so our
`model.safetensors` can be loaded into the authors' modules manually.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from based_jax.convert import hub
from based_jax.convert.configs import current_names, model_config
from based_jax.convert.hub import CONFIG
from based_jax.convert.layouts import Rules, Shapes, expect_variables, flatten, to_tensors
from based_jax.convert.model_card import ModelCard, write_card
from based_jax.convert.options import Config
from based_jax.convert.reference_modules import drop_tied_head, to_params
from based_jax.convert.state_dict import (
    WEIGHT_FILES,
    expect_keys,
    read_state_dict,
    weight_file,
    write_safetensors,
)
from based_jax.convert.tables import mixer_rules, mlp_rules, model_rules, names_of
from based_jax.convert.torch_file.writer import write_torch_file
from based_jax.convert.written_like import expect_same, stored_tensors
from based_jax.data.tokenizers import Tokenizer, add_stop_tokens, load_tokenizer
from based_jax.files import read_object, remove_unfinished, write_json
from based_jax.mixers.initializers import initial_shapes
from based_jax.models import LanguageModel, ModelConfig
from based_jax.models.language_model import blank_inputs, param_shapes
from based_jax.models.presets import BYTE_VOCAB
from based_jax.models.sharding import shardings_of
from based_jax.typing import Params
from based_jax.validate import expect, expect_choice, expect_range

FORMAT = "based_jax"
VERSION = 1
SAFETENSORS, INDEX, TORCH_FILE, _ = WEIGHT_FILES
MAX_SHARD_BYTES = 10 * 10**9
"""Default for directories: every preset fits into one file."""


def load_pretrained(
    source: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    revision: str | None = None,
    mesh: Mesh | None = None,
) -> tuple[LanguageModel, Params]:
    """Load a language model and its parameters.

    Args:
        source: directory with config.json and weights (safetensors or torch's .bin, sharded or not), written
            by `save_pretrained`, the authors' code, fla's or `transformers`; directory of a training run; or
            a hub id such as "hazyresearch/based-360m", optionally followed by "@revision".
        dtype: dtype of the computation, e.g. "bfloat16"; None keeps the config's.
        revision: of a hub id: branch, tag or commit; None is the main branch.
        mesh: devices over which the parameters are sharded (`shardings_of`), each getting its part from the
            host; None puts all of them on the default device.

    Returns:
        The model, and ``{"params": ...}`` as plain float32 arrays whatever the file's dtype.

    Raises:
        ValueError: an unsupported config; weights that are missing, unexpected, of a wrong shape or contain
            NaN (the message names them); an untied head if the config ties it.
        FileNotFoundError, PermissionError: no such directory, or the hub has no such model or refuses access.
        ImportError: a hub id without huggingface_hub.
    """
    directory = find_directory(source, revision)
    config = read_config(directory)
    parse_config(config, {}, directory)  # refuses what is not supported, before reading the weights
    tensors = current_names(config, read_state_dict(directory))
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    found = parse_config(config, shapes, directory)
    if dtype is not None:
        found = found.replace(dtype=dtype)
    with _naming(directory / CONFIG):  # invalid mixer options are only found when the mixer is built
        _expect_outline(found, shapes)
        ours = language_model_shapes(found)
    rules = language_model_rules(found, shapes)
    if found.tie_embeddings:
        tensors = drop_tied_head(tensors, names_of(found, shapes))
    model = LanguageModel(found)
    return model, to_params(rules, tensors, ours, {} if mesh is None else _shardings(model, mesh))


def _shardings(model: LanguageModel, mesh: Mesh) -> Mapping[str, Any]:
    boxed = initial_shapes(model.init, jax.random.key(0), blank_inputs(model.config))
    return flatten(shardings_of(boxed["params"], mesh))


def save_pretrained(
    directory: str | os.PathLike[str],
    model: LanguageModel,
    params: Params,
    *,
    like: str | os.PathLike[str] | None = None,
    card: ModelCard | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write config.json, a model card, and the weights under the authors' torch names, with a tied head.

    Args:
        directory: created if needed; files of the same names are replaced, except a README.md of your own.
        params: ``{"params": ...}``; boxes with logical axis names are removed. Dtypes are kept.
        like: directory or hub id of a checkpoint of the same model in another form than ours, which the
            authors' code, fla or `transformers` wrote. Then its config.json, its names and dtypes of tensors,
            and its tensors that `load_pretrained` does not read are written, to pytorch_model.bin if that is
            its form of weights, and no model card.
        card: facts for README.md in addition to the architecture; also kept in our config.json.
        max_shard_bytes: of safetensors: a larger model is written as numbered shards and an index.

    Returns:
        The file with the weights, or the index of the shards.

    Raises:
        ValueError: parameters of another model; a model other than that of `like`; a training run's
            directory, or one with weights that `load_pretrained` would read instead.
    """
    expect_no_run(Path(directory))
    card, file = card or ModelCard(), SAFETENSORS
    description: Mapping[str, Any]
    if like is None:
        known = card.to_dict()
        description = {"format": FORMAT, "version": VERSION, "model": model.config.to_dict()}
        description |= {"card": known} if known else {}
        tensors = state_dict(model, params)
    else:
        source = find_directory(like)
        description, tensors = _like(model, params, source)
        file = TORCH_FILE if weight_file(source).name.startswith(TORCH_FILE) else file
    target = Path(directory)
    others = [name for name in WEIGHT_FILES[: WEIGHT_FILES.index(file)] if (target / name).exists()]
    expect(not others, str(target), others, f"no weights that a loader prefers to {file}")
    target.mkdir(parents=True, exist_ok=True)
    # Without it, a save that is interrupted is an error, not the weights of one model with another's config.
    (target / CONFIG).unlink(missing_ok=True)
    remove_unfinished(target)
    if file == TORCH_FILE:
        write_torch_file(target / file, tensors)
        weights = target / file
    else:
        weights = write_weights(target, tensors, max_shard_bytes)
    write_json(target / CONFIG, description)
    if like is None:
        write_card(target, card, model.config, sum(leaf.size for leaf in jax.tree.leaves(params)))
    return weights


def expect_no_run(directory: Path) -> None:
    """Check that config.json of a directory to write to is not a training run's, which it needs to resume."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):  # no file, or a damaged one, which may be replaced
        found = read_object(directory / CONFIG)
    expect("train" not in found, "directory", str(directory), "another one than that of a training run")


def write_weights(
    directory: Path, tensors: Mapping[str, np.ndarray | jax.Array], max_shard_bytes: int = MAX_SHARD_BYTES
) -> Path:
    """Write model.safetensors, or numbered shards and an index if one file would be too large.

    Files of an earlier save that are no longer used are removed.

    Args:
        max_shard_bytes: maximum bytes of tensors per file; a larger tensor gets its own file.

    Returns:
        The file for a loader: model.safetensors or the index.

    Raises:
        ValueError: `max_shard_bytes` below 1; tensors as in `write_safetensors`.
    """
    expect_range("max_shard_bytes", max_shard_bytes, 1, 2**63)
    metadata = {"format": "pt"}
    shards = _split(tensors, max_shard_bytes)
    # Without an index, a save that is interrupted between shards is an error, not a mixture of two models.
    (directory / INDEX).unlink(missing_ok=True)
    if len(shards) == 1:
        write_safetensors(directory / SAFETENSORS, tensors, metadata)
        shards = {}
    for file, names in shards.items():
        write_safetensors(directory / file, {name: tensors[name] for name in names}, metadata)
    if shards:
        weight_map = {name: file for file, names in shards.items() for name in names}
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(directory / INDEX, index)
        (directory / SAFETENSORS).unlink(missing_ok=True)
    for path in directory.glob("model-*-of-*.safetensors"):
        if path.name not in shards:
            path.unlink()
    return directory / (INDEX if shards else SAFETENSORS)


def _split(tensors: Mapping[str, np.ndarray | jax.Array], most: int) -> dict[str, list[str]]:
    """Assign tensors to files in order: file name -> names of its tensors, at least one per file."""
    groups: list[list[str]] = []
    free = 0
    for name, tensor in tensors.items():
        if not groups or tensor.nbytes > free:
            groups.append([])
            free = most
        groups[-1].append(name)
        free -= tensor.nbytes
    count = len(groups)
    numbered = enumerate(groups, start=1)
    return {f"model-{number:05}-of-{count:05}.safetensors": names for number, names in numbered}


def state_dict(model: LanguageModel, params: Params, keys: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Return the parameters as NumPy arrays with a tied head.

    Names are the authors', or those of the code base of a checkpoint with these `keys`.
    """
    expect_variables(params)
    leaves = flatten(jax.device_get(nn.meta.unbox(params)["params"]))
    wanted = language_model_shapes(model.config)
    found = {path: tuple(leaf.shape) for path, leaf in leaves.items()}
    wrong = sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
    expect(not wrong, "params", wrong[:10], "this model's; these are missing, unexpected or of a wrong shape")
    tensors = to_tensors(language_model_rules(model.config, keys), leaves)
    names = names_of(model.config, keys)
    return {names.head: tensors[names.embedding], **tensors}


def _like(model: LanguageModel, params: Params, source: Path) -> tuple[Config, dict[str, np.ndarray]]:
    """Return config.json and the tensors in the form of the checkpoint in `source`."""
    config = read_config(source)
    is_other = config.get("format") != FORMAT
    expect(is_other, "like", str(source), "None for our form, or a checkpoint in another form")
    stored = read_state_dict(source)
    shapes = {key: tensor.shape for key, tensor in current_names(config, stored).items()}
    expect_same(model.config, parse_config(config, shapes, source))
    return config, stored_tensors(config, state_dict(model, params, shapes), stored)


def language_model_rules(config: ModelConfig, keys: Collection[str] = ()) -> Rules:
    """Return the layout rules of any language model; `keys` of a checkpoint choose among several layouts."""
    paths, names = language_model_shapes(config), names_of(config, keys)
    layers = []
    for index in range(config.num_layers):
        prefix = f"layers_{index}/mixer/"
        own = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        layers.append(mixer_rules(config.layer(index).mixer, own, names))
    return model_rules(layers, names, mlp_rules(keys))


def language_model_shapes(config: ModelConfig) -> Shapes:
    """Return the paths and shapes of a language model's parameters."""
    return {path: leaf.shape for path, leaf in flatten(param_shapes(config)).items()}


def find_directory(source: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Return `source` if it is a directory (model/ of a training run), else the hub's files of it.

    Raises:
        ValueError: a revision is given for a directory.
        FileNotFoundError, PermissionError, ImportError: see `load_pretrained`; or a run that has not written
            model/ yet.
    """
    path = Path(source)
    expected = f"None, or a hub id instead of the directory {source}"
    expect(revision is None or not path.exists(), "revision", revision, expected)
    if (path / "model" / CONFIG).is_file():
        return path / "model"
    if (path / "checkpoints").is_dir():
        raise FileNotFoundError(f"{source}: expected a finished run, but it has no model/{CONFIG}")
    if path.is_dir():
        return path
    if isinstance(source, str) and not path.exists() and hub.is_hub_id(source):
        # Refuses what is not supported before the weights are fetched.
        return hub.fetch(source, revision, lambda found: parse_config(read_config(found), {}, found))
    raise FileNotFoundError(f"{source}: expected a directory with {CONFIG} and weights, or a hub id")


def read_config(directory: Path) -> Mapping[str, Any]:
    """Read and parse config.json."""
    path = directory / CONFIG
    if not path.is_file():
        expected = f"expected {CONFIG} and weights in this directory, found no {CONFIG}"
        raise FileNotFoundError(f"{directory}: {expected}")
    return read_object(path)


def parse_config(config: Mapping[str, Any], shapes: Shapes, directory: Path) -> ModelConfig:
    """Convert either kind of config.json to a `ModelConfig`; errors name the file."""
    with _naming(directory / CONFIG):
        if config.get("format") != FORMAT:
            return model_config(config, shapes)
        expect(config.get("version") == VERSION, "version", config.get("version"), f"{VERSION}")
        expect(isinstance(config.get("model"), dict), "model", config.get("model"), "a JSON object")
        for name in config:
            expect_choice("entry of config.json", name, ("format", "version", "model", "card"))
        return ModelConfig.from_dict(config["model"])


def read_card(config: Mapping[str, Any]) -> ModelCard:
    """Return the model card in a native config.json, empty if there is none. ValueError: it is invalid."""
    has_card = config.get("format") == FORMAT and "card" in config
    return ModelCard.from_dict(config["card"]) if has_card else ModelCard()


def _expect_outline(config: ModelConfig, shapes: Shapes) -> None:
    """Check the embedding's shape and the number of layers, before any layer is traced."""
    names = names_of(config, shapes)
    wanted = (config.padded_vocab_size, config.embed_width)
    expect_keys({names.embedding: shapes.get(names.embedding, wanted)}, {names.embedding: wanted})
    layers = names.layers(shapes)
    numbers = {str(index) for index in range(config.num_layers)}
    wanted_layers = f"{config.num_layers}, as the config says"
    expect(layers == numbers, "layers of the weights", len(layers), wanted_layers)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors about its content; values of a wrong type fail only when first used."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def find_tokenizer(directory: Path, spec: str | None, vocab_size: int, rows: int | None = None) -> Tokenizer:
    """Load the tokenizer `spec`, else the model's own, else bytes if the vocabulary has their size.

    Args:
        vocab_size: tokens of the model.
        rows: of its embedding; a tokenizer with more tokens is refused. None: the embedding will grow.
    """
    tokenizer = own_tokenizer(directory, vocab_size) if spec is None else load_tokenizer(spec)
    if tokenizer is None:
        raise ValueError(f"tokenizer = None: expected one to be given: {directory} has no tokenizer.json")
    if spec is not None:
        add_stop_tokens(tokenizer, directory)
    expected = f"a tokenizer with at most the checkpoint's {vocab_size} tokens"
    expect(rows is None or tokenizer.vocab_size <= rows, "tokenizer", tokenizer.name, expected)
    return tokenizer


def own_tokenizer(directory: Path, vocab_size: int) -> Tokenizer | None:
    """Load the model's own tokenizer, else bytes if the vocabulary has their size, else None."""
    if (directory / "tokenizer.json").is_file():
        return load_tokenizer(directory)
    return load_tokenizer("byte") if vocab_size == BYTE_VOCAB else None
