"""Map torch tensors to our parameter trees and back: two-way rules, collected in tables (`tables.py`).

A rule maps torch keys to paths ("mixer/q/kernel") through a layout. Layouts only permute, reshape, split and
join, so gradients convert like parameters. Rules contain no sizes, which come from our own tree
(`shapes_of`); one table yields the tree, the torch tensors, and the torch keys and shapes that a file must
have.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from based_jax.typing import Array

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]
Tensors: TypeAlias = Mapping[str, Any]
"""Tensors by name: NumPy arrays, JAX arrays or tracers."""


class Layout(NamedTuple):
    """Both directions of one rule."""

    to_jax: Callable[[list[Any], list[Shape]], list[Any]]
    """torch tensors and the shapes of our leaves -> our leaves"""
    to_torch: Callable[[list[Any], int], list[Any]]
    """our leaves and the number of torch tensors -> the torch tensors"""


@dataclasses.dataclass(frozen=True)
class Rule:
    """Torch keys and the paths of our leaves that hold the same numbers."""

    keys: tuple[str, ...]
    paths: tuple[str, ...]
    layout: Layout


Rules: TypeAlias = tuple[Rule, ...]


def linear(keys: str | Iterable[str], paths: str | Iterable[str], inputs: int = 1) -> Rule:
    """Map linear weights (out, in), stacked by rows <-> kernels (in..., out...), concatenated by outputs.

    The first `inputs` axes of a kernel are the input. Several keys have equal numbers of rows; several paths
    (q, k, v of a packed projection) take rows according to their sizes.
    """

    def to_jax(tensors: list[Any], shapes: list[Shape]) -> list[Any]:
        columns = _join(tensors, 0).T
        parts = _split(columns, [math.prod(shape[inputs:]) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def to_torch(leaves: list[Any], count: int) -> list[Any]:
        columns = _join([leaf.reshape(math.prod(leaf.shape[:inputs]), -1) for leaf in leaves], 1)
        parts = _split(columns, [columns.shape[1] // count] * count)
        return [part.T if inputs else part[0] for part in parts]

    return Rule(_names(keys), _names(paths), Layout(to_jax, to_torch))


def vector(keys: str | Iterable[str], paths: str | Iterable[str]) -> Rule:
    """Map stacked vectors <-> leaves of any shape, flattened and stacked: a linear map without inputs."""
    return linear(keys, paths, inputs=0)


def dense(key: str, path: str, inputs: int = 1) -> Rules:
    """Return the rules of a linear map's weight and bias; see `linear`."""
    return linear(f"{key}.weight", f"{path}/kernel", inputs), vector(f"{key}.bias", f"{path}/bias")


def taps(key: str, path: str) -> Rule:
    """Map depthwise convolution weights (channels, 1, taps) <-> (taps, channels...); both newest tap last."""
    layout = Layout(
        lambda tensors, shapes: [tensors[0][:, 0, :].T.reshape(shapes[0])],
        lambda leaves, count: [leaves[0].reshape(leaves[0].shape[0], -1).T[:, None, :]],
    )
    return Rule((key,), (path,), layout)


def same(key: str, path: str, ones: int = 0) -> Rule:
    """Map an array to itself; the torch tensor has `ones` leading axes of size 1."""
    layout = Layout(
        lambda tensors, shapes: [tensors[0][(0,) * ones] if ones else tensors[0]],
        lambda leaves, count: [leaves[0][(None,) * ones] if ones else leaves[0]],
    )
    return Rule((key,), (path,), layout)


def under(rules: Iterable[Rule], key_prefix: str, path_prefix: str) -> Rules:
    """Prefix the rules of a submodule for its parent: `prefix.key` and `prefix/path`."""
    return tuple(
        dataclasses.replace(rule, paths=tuple(f"{path_prefix}/{path}" for path in rule.paths))
        for rule in rekeyed(rules, lambda key: f"{key_prefix}.{key}")
    )


def renamed(rules: Iterable[Rule], old: str, new: str) -> Rules:
    """Rename the torch submodule `old` to `new` in the rules."""
    return rekeyed(rules, lambda key: key.replace(f"{old}.", f"{new}.", 1))


def rekeyed(rules: Iterable[Rule], rename: Callable[[str], str]) -> Rules:
    """Rename the torch keys of the rules."""
    return tuple(dataclasses.replace(rule, keys=tuple(map(rename, rule.keys))) for rule in rules)


def shapes_of(module: nn.Module, *inputs: Any) -> dict[str, Shape]:
    """Return the paths and shapes of a module's parameters, without computing them."""
    variables = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs))
    return {path: leaf.shape for path, leaf in flatten(variables.get("params", {})).items()}


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a nested dict into paths and leaves."""
    return traverse_util.flatten_dict(dict(tree), sep="/")


def select(rules: Iterable[Rule], paths: Iterable[str]) -> Rules:
    """Select the rules whose leaves exist; tables also list optional parts, such as biases.

    Raises:
        ValueError: a leaf that is covered by no rule, or by several.
    """
    paths = set(paths)
    chosen = tuple(rule for rule in rules if paths.issuperset(rule.paths))
    covered = [path for rule in chosen for path in rule.paths]
    if sorted(covered) != sorted(paths):
        wrong = sorted(path for path in paths if covered.count(path) != 1)
        raise ValueError(f"parameters {wrong}: expected exactly one layout rule for each")
    return chosen


def torch_shapes(rules: Iterable[Rule], shapes: Shapes) -> dict[str, Shape]:
    """Return the torch keys and shapes that correspond to our paths and shapes."""
    leaves = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}
    tensors = jax.eval_shape(lambda leaves: to_tensors(rules, leaves), leaves)
    return {key: tensor.shape for key, tensor in tensors.items()}


def to_tree(rules: Iterable[Rule], tensors: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Convert torch tensors to our nested parameter tree, as float32 JAX arrays.

    Removes each tensor from `tensors` as it is converted, so that the model is never in memory twice unless
    the caller keeps other references.
    """
    leaves: dict[str, Array] = {}
    for rule in select(rules, shapes):
        parts = [tensors.pop(key) for key in rule.keys]
        found = rule.layout.to_jax(parts, [shapes[path] for path in rule.paths])
        for path, leaf in zip(rule.paths, found, strict=True):
            # Copy, as a CPU device shares memory with NumPy; jnp.array would compile a copy for every shape.
            leaves[path] = jax.device_put(np.array(leaf, np.float32))
    return traverse_util.unflatten_dict({path: leaves[path] for path in shapes}, sep="/")


def to_tensors(rules: Iterable[Rule], leaves: Tensors) -> dict[str, Any]:
    """Convert our leaves by path to torch tensors by key; arrays keep their type and dtype."""
    tensors: dict[str, Any] = {}
    for rule in select(rules, leaves):
        found = rule.layout.to_torch([leaves[path] for path in rule.paths], len(rule.keys))
        tensors.update(zip(rule.keys, found, strict=True))
    return tensors


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _join(arrays: Sequence[Any], axis: int) -> Any:
    return arrays[0] if len(arrays) == 1 else arrays[0].__array_namespace__().concat(arrays, axis=axis)


def _split(array: Any, sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum(sizes)
    return [array[..., end - size : end] for end, size in zip(ends, sizes, strict=True)]
