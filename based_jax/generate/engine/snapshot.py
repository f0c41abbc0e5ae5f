"""Save the state after a prefix in one file, so that the prefix is never read again.

On disk a snapshot is a safetensors file, written whole or not at all:

    tokens        int32 (N,), the prefix
    hidden        (1, D), the final norm's output at its last token
    state/PATH    the state's arrays by their paths in it, one row; only the filled slots of caches
    metadata      format "based_jax.snapshot", version "3", config and weights: fingerprints of the model,
                  sha256: of all of the above

The checksum finds damaged files, not forged ones: whoever can write the file can also write its checksum.
A state is useful only with the weights that made it, so a file of another model is refused.
"""

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax.convert.state_dict import expect_keys, write_safetensors
from based_jax.generate.capacity import capacity_for, with_capacity
from based_jax.generate.engine.pool import read
from based_jax.generate.prompt import chunk_sizes, read_prompt
from based_jax.generate.rows import row_count
from based_jax.models.config import ModelConfig
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Array, Float, Params, State
from based_jax.validate import expect, expect_array, expect_integer
from based_jax.whole_file import raw_bytes

FORMAT = "based_jax.snapshot"
VERSION = "3"

_TRAINING_ONLY = (
    *("embed_dropout", "residual_dropout", "drop_path", "embed_init", "freeze_embedding", "init_std"),
    *("max_length", "remat", "scan_layers"),
)
"""fields of a config that do not change a state"""


class Snapshot(NamedTuple):
    """A prefix and the model's state after it."""

    tokens: np.ndarray
    """(N,) int32"""
    state: State
    """one row, after the tokens"""
    hidden: Float[Array, "1 D"]
    """the final norm's output at the last token"""


def snapshot(
    model: LanguageModel, params: Params, tokens: Sequence[int], *, max_length: int | None = None
) -> Snapshot:
    """Read a prefix and return its snapshot.

    Args:
        model: any model whose mixers can continue from a state.
        params: its variables.
        max_length: tokens that the state must hold, later ones included; only KV caches need it. Defaults to
            N. `with_capacity` enlarges a state later.

    Raises:
        TypeError, ValueError: `tokens` is empty, holds values outside of the vocabulary, or has more than
            `max_length` tokens or the model's positions.
    """
    row = np.asarray(read_prompt([tokens], None, model.config.vocab_size).tokens[0])
    most = model.config.max_positions or len(row)
    expect(len(row) <= most, "tokens", len(row), f"at most {most} = max_positions of the model")
    max_length = len(row) if max_length is None else max_length
    expect_integer("max_length", max_length, 1)
    expect(max_length >= len(row), "max_length", max_length, f"at least {len(row)}, the number of tokens")
    state, hidden, begin = model.init_state(1, capacity_for(model, max_length)), None, 0
    for size in chunk_sizes(len(row)):
        chunk = row[begin : begin + size]
        padded = np.pad(chunk, (0, size - len(chunk)))[None]
        state, hidden = read(model, params, state, padded, len(chunk))
        begin += size
    assert hidden is not None
    return Snapshot(row, with_capacity(model, state, max_length), hidden)


def save_snapshot(
    path: str | os.PathLike[str],
    model: LanguageModel,
    params: Params,
    tokens: Sequence[int],
    state: State,
    hidden: Float[Array, "1 D"],
) -> None:
    """Write a snapshot: ``save_snapshot(path, model, params, *snapshot)``.

    Args:
        path: the file to create or replace; its directory must exist.
        model, params: the model and weights that made the state.
        tokens, state, hidden: see `Snapshot`.

    Raises:
        ValueError: not one row of this model's state, or a state that cannot follow these tokens: it has
            NaNs, or a length beyond theirs.
        FileNotFoundError: no such directory.
    """
    expect(row_count(state) == 1, "state", f"{row_count(state)} rows", "one row")
    expect_array("hidden", hidden, (1, model.config.embed_width), "floating")
    tensors = _named(with_capacity(model, state, len(tokens)), hidden)
    stored = {name: np.asarray(tensor).view(_on_disk(tensor).dtype) for name, tensor in tensors.items()}
    expect_keys(_shapes(stored), _shapes(_wanted(model, len(tokens))))
    stored["tokens"] = np.asarray(tokens, np.int32)
    _expect_values(stored, model.config.vocab_size)
    write_safetensors(path, stored, {**_notes(model, params), "sha256": _digest(stored)})


def load_snapshot(
    path: str | os.PathLike[str], model: LanguageModel, params: Params, *, max_length: int | None = None
) -> Snapshot:
    """Read a snapshot of this model.

    Args:
        path: a file of `save_snapshot`.
        model, params: the model and weights that must have made it.
        max_length: see `snapshot`.

    Raises:
        ValueError: not a snapshot, or a damaged one, or one of another model, other weights or another
            version; or a `max_length` below its tokens.
        FileNotFoundError: no such file.
    """
    from safetensors import SafetensorError

    try:
        tensors = _read(path, model, _notes(model, params))
    except FileNotFoundError:
        raise
    except (SafetensorError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"snapshot = {os.fspath(path)!r}: expected one of this model ({error})") from error
    tokens = tensors["tokens"]
    names = _named(*_empty(model.config, len(tokens)))
    arrays = [jnp.asarray(tensors[name].view(leaf.dtype)) for name, leaf in names.items()]
    state, hidden = jax.tree.unflatten(jax.tree.structure(_empty(model.config, len(tokens))), arrays)
    if max_length is not None:
        expect(max_length >= len(tokens), "max_length", max_length, f"at least the {len(tokens)} tokens")
        state = with_capacity(model, state, max_length)
    return Snapshot(tokens, state, hidden)


def _notes(model: LanguageModel, params: Params) -> dict[str, str]:
    """Return format and version, and a SHA-256 of the config and one of the weights, which read them all."""
    fields = {name: value for name, value in model.config.to_dict().items() if name not in _TRAINING_ONLY}
    config = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    leaves, _ = jax.tree_util.tree_flatten_with_path(nn.meta.unbox(params))
    weights = _digest({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves})
    return {"format": FORMAT, "version": VERSION, "config": config, "weights": weights}


def _read(
    path: str | os.PathLike[str], model: LanguageModel, notes: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Read the arrays of a file, after checking that its header fits."""
    from safetensors import safe_open

    if os.path.exists(path):  # opening a pipe would block
        expect(os.path.isfile(path), "file", "no regular file", "one")
    with safe_open(os.fspath(path), framework="numpy") as file:
        found = file.metadata() or {}
        for name, value in notes.items():
            expect(found.get(name) == value, name, found.get(name), repr(value))
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        count = shapes.get("tokens", [])
        expect(len(count) == 1 and count[0] >= 1, "tokens", count, "a row of them")
        wanted = {**_wanted(model, count[0]), "tokens": jax.ShapeDtypeStruct(count, jnp.int32)}
        expect_keys(shapes, _shapes(wanted))
        tensors = {name: file.get_tensor(name) for name in wanted}
    for name, tensor in tensors.items():
        expect(tensor.dtype == wanted[name].dtype, name, str(tensor.dtype), str(wanted[name].dtype))
    expect(found.get("sha256") == _digest(tensors), "sha256", found.get("sha256"), "that of the arrays")
    _expect_values(tensors, model.config.vocab_size)
    return tensors


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        digest.update(raw_bytes(tensors[name]))
    return digest.hexdigest()


def _expect_values(tensors: Mapping[str, np.ndarray], vocab_size: int) -> None:
    """Check values that a model would accept silently: token ids, lengths, NaN."""
    tokens = tensors["tokens"]
    for name, tensor in tensors.items():
        kind = name.rpartition("/")[2]
        if name == "tokens":
            wrong, expected = (tensor < 0) | (tensor >= vocab_size), f"tokens in [0, {vocab_size})"
        elif kind in ("length", "start"):  # of a `Stream`
            wrong, expected = (tensor < 0) | (tensor > len(tokens)), f"at most the {len(tokens)} tokens"
        elif kind == "broken":
            wrong, expected = tensor, "False"
        elif tensor.dtype.kind in "iub":
            continue
        else:
            wrong, expected = np.isnan(tensor), "numbers"
        expect(not wrong.any(), name, tensor[wrong][:1].tolist(), expected)


def _wanted(model: LanguageModel, count: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the arrays that a file must hold after `count` tokens, besides the tokens."""
    return {name: _on_disk(leaf) for name, leaf in _named(*_empty(model.config, count)).items()}


@functools.lru_cache(maxsize=32)  # tracing takes longer than reading a small file
def _empty(config: ModelConfig, count: int) -> tuple[State, Any]:
    """Return shapes and dtypes of a state of one row and of its hidden vector."""
    hidden = jax.ShapeDtypeStruct((1, config.embed_width), config.jnp_dtype)
    return jax.eval_shape(lambda: LanguageModel(config).init_state(1, count)), hidden


def _named(state: State, hidden: Any) -> dict[str, Any]:
    """Return the leaves of (state, hidden), in that tree's order, by their names in a file."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    paths = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    return {**{f"state/{path}": leaf for path, leaf in paths.items()}, "hidden": hidden}


def _on_disk(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape and dtype in a file, where a complex number is stored as two real ones."""
    if not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.ShapeDtypeStruct((*leaf.shape[:-1], 2 * leaf.shape[-1]), jnp.finfo(leaf.dtype).dtype)


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
