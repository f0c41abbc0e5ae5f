"""Read and write state dicts: one file, shards with an index, or a directory; torch's format or safetensors.

Names are those that the authors' loader would see: without Lightning's prefix `model.`, training metrics, and
buffers that no model of this library has. Older checkpoints have other names and layouts:

    authors    norms ended their blocks: `transformer.ln_0` came before the first block, and the norm after
               each branch had the branch's number; now each norm comes before its branch, the last is `ln_f`
    fla        model.embed_tokens and backbone.embedding, the token embedding until March 2024 and in Mamba's
               files; attn.norm and mlp.norm, the norms of a block until February 2025; mlp.gate_proj of
               2 x hidden rows, gate and value as one matrix until then; attn.D of Gated DeltaNet, never read
"""

import json
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.convert.tables import AUTHORS, RENAMED, Names
from based_jax.convert.torch_file.instructions import CheckpointError
from based_jax.convert.torch_file.reader import load_torch_file
from based_jax.files import MAX_BYTES, parse_json, raw_bytes, read_json, whole_file
from based_jax.validate import shown, shown_name

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names of weight files; the first one that a directory has is read."""
_PREFIX = re.compile(r"^model\.")
_NOT_WEIGHTS = re.compile(r"metrics|(^|\.)rotary_emb\.inv_freq$|^transformer\.decay\.decay$")
_SAFETENSORS_NAMES = {
    **{f"float{bits}": f"F{bits}" for bits in (64, 32, 16)},
    "bfloat16": "BF16",
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (64, 32, 16, 8)},
    "bool": "BOOL",
}
_CHECK_ELEMENTS = 1 << 22  # elements per step of the check for NaN: a few MiB of temporary memory
_SHOWN = 10
_GATE = re.compile(r"\.mlp\.gate_proj\.weight$")
_GATES_JOINED = ("fla", "granitemoehybrid")  # whose gate and value may be one matrix
T = TypeVar("T")


def read_state_dict(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the weights of a checkpoint, under the names of the torch modules.

    A leading `model.` is stripped, and norms of older checkpoints are renamed; entries with "metrics" in
    their name, `*.rotary_emb.inv_freq` and `transformer.decay.decay` are dropped.

    Args:
        path: a file (.safetensors, .bin, .pt, .pth, or an .index.json next to its shards), or a directory,
            of which the first of `model.safetensors`, `model.safetensors.index.json`, `pytorch_model.bin`
            and `pytorch_model.bin.index.json` is read.

    Returns:
        Name -> array, of the shape and dtype in the file. Arrays may be read-only, and tied ones may share
        memory.

    Raises:
        CheckpointError: no such file, no weights in the directory, a damaged file or index, a shard outside
            the directory, two entries for one name, or a weight that float32 cannot represent: integer,
            boolean or complex, or with NaN, infinity or values beyond float32's range.
        UnsafeCheckpointError: a torch file with more than plain tensors (see `load_torch_file`).
    """
    file = weight_file(Path(path))
    stored = _read_shards(file) if file.name.endswith(".index.json") else _read_file(file)
    weights: dict[str, np.ndarray] = {}
    for stored_name, array in stored.items():
        name = _PREFIX.sub("", stored_name)
        if _NOT_WEIGHTS.search(name):
            continue
        if name in weights:
            twice = f"{shown_name(name)} is there twice"
            raise CheckpointError(f"{file}: {twice}, with and without the prefix model.")
        weights[name] = array
    if not weights:
        raise CheckpointError(f"{file}: no weights, only {_show(list(stored))}")
    try:
        expect_weights(weights)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None
    return with_norms_before(weights)


def expect_weights(tensors: Mapping[str, Any]) -> None:
    """Check that these values are valid float32 parameters."""
    for name, array in tensors.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise CheckpointError(f"{shown_name(name)} has dtype {array.dtype}: expected a floating dtype")
    not_finite = [name for name, array in tensors.items() if not _is_finite(array)]
    if not_finite:
        raise CheckpointError(f"NaN or infinity in {_show(not_finite)}, as float32")


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray | jax.Array],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file atomically, with the same bytes for the same content.

    The header is written here because the library orders metadata differently in every process.

    Args:
        path: the file to create or replace; its directory must exist.
        tensors: name -> array (NumPy or JAX, any shape and strides); bfloat16 is `ml_dtypes.bfloat16`.
        metadata: text entries for the header.

    Raises:
        ValueError: no tensors, a reserved or empty name, metadata that is not text, or a dtype that
            safetensors has no name for.
        FileNotFoundError: no such directory.
    """
    # Wide dtypes first, as in the library, so that every tensor is aligned to its item size.
    names = sorted(tensors, key=lambda name: (-np.dtype(tensors[name].dtype).itemsize, name))
    header = _safetensors_header(names, tensors, metadata or {})
    with whole_file(path) as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name in names:
            file.write(raw_bytes(tensors[name]))


def expect_keys(found: Mapping[str, Sequence[int]], wanted: Mapping[str, Sequence[int]]) -> None:
    """Check that a state dict has exactly the wanted names and shapes.

    Raises:
        CheckpointError: one message with the names of missing, unexpected and wrongly shaped tensors.
    """
    groups = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "wrongly shaped": [
            f"{shown_name(name)} {tuple(found[name])} instead of {tuple(shape)}"
            for name, shape in wanted.items()
            if name in found and tuple(found[name]) != tuple(shape)
        ],
    }
    problems = [f"{len(names)} {what}: {_show(names)}" for what, names in groups.items() if names]
    if problems:
        raise CheckpointError("the state dict does not fit the model; " + "; ".join(problems))


def weight_file(path: Path) -> Path:
    """Return the file that holds or indexes the weights at `path`."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or directory")
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return path / name
    raise CheckpointError(f"{path}: no weights in this directory, expected {' or '.join(WEIGHT_FILES)}")


def _read_file(file: Path) -> dict[str, np.ndarray]:
    reader = _READERS.get(file.suffix)
    if reader is None:
        raise CheckpointError(f"{file}: expected a weight file ending in {' or '.join(_READERS)}")
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file")
    return reader(file)


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    # Imported here: `import based_jax` needs only jax, flax, numpy and jaxtyping.
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    _expect_header(file)
    try:
        return load_file(file)
    except (SafetensorError, ValueError) as error:
        reason = shown_name(str(error))  # the message quotes names unescaped
        raise CheckpointError(f"{file}: truncated or damaged safetensors file ({reason})") from error
    except (AttributeError, KeyError, TypeError) as error:
        reason = shown_name(str(error))
        raise CheckpointError(f"{file}: tensors of a dtype that NumPy does not have ({reason})") from error


def _expect_header(file: Path) -> None:
    """Check that the header is small and names no tensor twice, which the library does not check."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = stream.read(min(size, MAX_BYTES))
    try:
        if size > MAX_BYTES:
            raise ValueError(f"a header of {size} bytes, expected at most {MAX_BYTES}")
        parse_json(header, "header", unique_keys=True)
    except ValueError as error:
        raise CheckpointError(f"{file}: truncated or damaged safetensors file ({error})") from error


_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".safetensors": _read_safetensors,
    ".bin": load_torch_file,
    ".pt": load_torch_file,
    ".pth": load_torch_file,
}


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    """Read the tensors of all shards; each shard must hold exactly the tensors in the index."""
    names_by_shard: dict[str, set[str]] = {}
    for name, shard in read_index(index).items():
        names_by_shard.setdefault(shard, set()).add(name)
    tensors: dict[str, np.ndarray] = {}
    for shard, names in names_by_shard.items():
        held = _read_file(index.parent / shard)
        if set(held) != names:
            difference = sorted(set(held) ^ names)
            raise CheckpointError(f"{index.parent / shard}: differs from {index.name} in {_show(difference)}")
        tensors.update(held)
    return tensors


def read_index(index: Path) -> dict[str, str]:
    """Read an index: tensor name -> shard, where every shard is a plain file name."""
    try:
        content = read_json(index)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        expected = "expected a JSON object with a mapping from tensors to files, weight_map"
        raise CheckpointError(f"{index}: {expected}")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not re.fullmatch(r"[\w-][\w.-]*", shard):
            problem = f"{shown_name(name)} is in {shown(shard)}, expected a file of this directory"
            raise CheckpointError(f"{index}: {problem}")
    return weight_map


def _is_finite(array: np.ndarray) -> bool:
    """Return whether float32 can represent every value of an array, up to rounding."""
    flat = array.reshape(-1)
    chunks = (flat[start : start + _CHECK_ELEMENTS] for start in range(0, flat.size, _CHECK_ELEMENTS))
    with np.errstate(over="ignore"):  # a float64 beyond float32's range becomes infinity
        return all(np.isfinite(chunk.astype(np.float32, copy=False)).all() for chunk in chunks)


def _safetensors_header(
    names: Sequence[str], tensors: Mapping[str, Any], metadata: Mapping[str, str]
) -> bytes:
    """Build the JSON header, padded to a multiple of 8 bytes, for tensors stored in the order of `names`."""
    if not names or "__metadata__" in names or "" in names:
        raise ValueError(f"tensors = {_show(names)}: expected names other than '' and '__metadata__'")
    if not all(isinstance(text, str) for entry in metadata.items() for text in entry):
        raise ValueError(f"metadata = {metadata!r}: expected text only")
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in names:
        tensor = tensors[name]
        dtype = np.dtype(tensor.dtype)
        if dtype.name not in _SAFETENSORS_NAMES:
            raise ValueError(f"tensor {name} has dtype {dtype}: expected {', '.join(_SAFETENSORS_NAMES)}")
        end = offset + tensor.size * dtype.itemsize
        shape = [int(size) for size in tensor.shape]
        kind = _SAFETENSORS_NAMES[dtype.name]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return encoded.ljust(-(-len(encoded) // 8) * 8)


def _show(names: Sequence[str]) -> str:
    first = ", ".join(map(shown_name, names[:_SHOWN]))
    return first if len(names) <= _SHOWN else f"{first} and {len(names) - _SHOWN} more"


def with_norms_before(tensors: Mapping[str, T]) -> dict[str, T]:
    """Rename the norms of the authors' older checkpoints; current checkpoints are unchanged.

    ln_0 becomes norm1 of layer 0, norm1 of layer i its norm2, norm2 of layer i norm1 of layer i + 1, and the
    last norm2 ln_f (flash-attention's GPTLMHeadModel.load_state_dict).
    """
    if "transformer.ln_0.weight" not in tensors:
        return dict(tensors)
    layers, norms = len(AUTHORS.layers(tensors)), {"transformer.ln_0": f"{AUTHORS.layer(0)}.norm1"}
    for index in range(layers):
        norms[f"{AUTHORS.layer(index)}.norm1"] = f"{AUTHORS.layer(index)}.norm2"
        norms[f"{AUTHORS.layer(index)}.norm2"] = f"{AUTHORS.layer(index + 1)}.norm1"
    norms[f"{AUTHORS.layer(layers - 1)}.norm2"] = "transformer.ln_f"
    split = {name: name.rpartition(".") for name in tensors}
    return {f"{norms.get(stem, stem)}{dot}{kind}": tensors[name] for name, (stem, dot, kind) in split.items()}


def renamed(tensors: Mapping[str, Any], model_type: str, names: Names) -> dict[str, Any]:
    """Rename the tensors of a checkpoint (from `read_state_dict`, without the prefix `model.`).

    Args:
        model_type: key of `tables.RENAMED`.
        names: of the code base whose names are current.
    """
    named: dict[str, Any] = {}
    for key, tensor in tensors.items():
        name = current_name(key, model_type)
        if name in named:
            raise CheckpointError(f"{shown_name(name)} is there twice, the second time as {shown_name(key)}")
        named[name] = tensor
    if names.embedding not in named:
        raise CheckpointError(f"1 missing: {names.embedding}")
    return _with_gates_apart(named) if model_type in _GATES_JOINED else named


def current_name(key: str, model_type: str) -> str:
    """Return the current name of a tensor."""
    name = key if key.startswith(("backbone.", "lm_head.", "model.")) else f"model.{key}"
    for old, new in RENAMED.get(model_type, ()):
        name = name.replace(old, new)
    return name


def _with_gates_apart(named: dict[str, Any]) -> dict[str, Any]:
    """Split the matrices of an MLP that hold its gate and its value."""
    for key in [key for key in named if _GATE.search(key)]:
        value = _GATE.sub(".mlp.up_proj.weight", key)
        if value not in named and named[key].ndim == 2 and len(named[key]) % 2 == 0:
            half = len(named[key]) // 2
            named[key], named[value] = named[key][:half], named[key][half:]
    return named
