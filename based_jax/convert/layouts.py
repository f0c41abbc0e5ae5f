"""Map torch tensors to our parameter trees and back: two-way rules, collected in tables (`tables`).

A rule maps torch keys to paths ("mixer/q/kernel"), and only permutes, reshapes, splits and joins, so
gradients convert like parameters. Rules contain no sizes, which come from our own tree (`shapes_of`): one
table yields the tree, the torch tensors, and the torch keys and shapes that a file must have.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from based_jax.mixers.initializers import initial_shapes
from based_jax.typing import Array
from based_jax.validate import expect

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]
Tensors: TypeAlias = Mapping[str, Any]
"""Tensors by name: NumPy arrays, JAX arrays or tracers."""


class Rule(NamedTuple):
    """Torch keys and the paths of our leaves that hold the same numbers.

    With `inputs`, linear weights (out, in) of equal sizes, stacked by rows, are kernels (in..., out...),
    concatenated by outputs: several paths (q, k, v of a packed projection) take rows of their sizes.
    A vector is a linear map with 0 inputs. If `inputs` is None there is one leaf, the first tensor; other
    tensors have its shape and are never read: dropped here, zeros in torch.
    """

    keys: tuple[str, ...]
    paths: tuple[str, ...]
    inputs: int | None = None
    """number of leading axes of a kernel that are its input"""
    ones: tuple[int, ...] = ()
    """axes of size 1 that only the torch tensors have"""

    def to_jax(self, tensors: list[Any], shapes: list[Shape]) -> list[Any]:
        """Convert the torch tensors to our leaves of these shapes."""
        tensors = [tensor.squeeze(self.ones) for tensor in tensors]
        if self.inputs is None:
            return tensors[:1]
        parts = _split(_join(tensors, 0).T, [math.prod(shape[self.inputs :]) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def to_torch(self, leaves: list[Any]) -> list[Any]:
        """Convert our leaves to the torch tensors."""
        numpy, count = leaves[0].__array_namespace__(), len(self.keys)
        if self.inputs is None:
            tensors = [leaves[0], *(numpy.zeros_like(leaves[0]) for _ in self.keys[1:])]
        else:
            columns = _join([leaf.reshape(math.prod(leaf.shape[: self.inputs]), -1) for leaf in leaves], 1)
            parts = _split(columns, [columns.shape[1] // count] * count)
            tensors = [part.T if self.inputs else part[0] for part in parts]
        return [numpy.expand_dims(tensor, self.ones) for tensor in tensors]


Rules: TypeAlias = tuple[Rule, ...]


def under(rules: Iterable[Rule], key_prefix: str, path_prefix: str) -> Rules:
    """Prefix the rules of a submodule for its parent: `prefix.key` and `prefix/path`."""
    return tuple(
        rule._replace(paths=tuple(f"{path_prefix}/{path}" for path in rule.paths))
        for rule in rekeyed(rules, lambda key: f"{key_prefix}.{key}")
    )


def rekeyed(rules: Iterable[Rule], rename: Callable[[str], str]) -> Rules:
    """Rename the torch keys of the rules."""
    return tuple(rule._replace(keys=tuple(map(rename, rule.keys))) for rule in rules)


def shapes_of(module: nn.Module, *inputs: Any) -> dict[str, Shape]:
    """Return the paths and shapes of a module's parameters, without computing them."""
    variables = nn.meta.unbox(initial_shapes(module.init, jax.random.key(0), *inputs))
    return {path: leaf.shape for path, leaf in flatten(variables.get("params", {})).items()}


def shape_of(shapes: Shapes, name: str, axes: int = 2) -> Shape:
    """Return the shape of a tensor from which sizes are read. ValueError: it is missing or has other axes."""
    shape = tuple(shapes.get(name, ()))
    expect(len(shape) == axes, name, shape or "missing", f"a tensor of {axes} axes")
    return shape


def expect_variables(params: Any) -> None:
    """Check that these are a model's variables, not the tree in them."""
    is_variables = isinstance(params, Mapping) and isinstance(params.get("params"), Mapping)
    found = sorted(params) if isinstance(params, Mapping) else type(params).__name__
    expect(is_variables, "params", found, "the model's variables, {'params': ...}")


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a nested dict into paths and leaves."""
    return traverse_util.flatten_dict(dict(tree), sep="/")


def select(rules: Iterable[Rule], paths: Iterable[str]) -> Rules:
    """Select the rules whose leaves exist; tables also list optional parts, such as biases."""
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


def to_tree(
    rules: Iterable[Rule], tensors: dict[str, Any], shapes: Shapes, shardings: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Convert torch tensors to our nested parameter tree, as float32 JAX arrays.

    Each device gets its part of an array that has a sharding; the others are on the default device. Removes
    each tensor from `tensors` as it is converted, so that the model is never in memory twice unless
    the caller keeps other references.
    """
    leaves: dict[str, Array] = {}
    for rule in select(rules, shapes):
        parts = [tensors.pop(key) for key in rule.keys]
        found = rule.to_jax(parts, [shapes[path] for path in rule.paths])
        for path, leaf in zip(rule.paths, found, strict=True):
            leaves[path] = _on_devices(leaf, shardings.get(path))
    return traverse_util.unflatten_dict({path: leaves[path] for path in shapes}, sep="/")


def _on_devices(array: Any, sharding: Any) -> Array:
    # Copies, as a CPU device shares memory with NumPy; jnp.array would compile a copy for every shape.
    if sharding is None:
        return jax.device_put(np.array(array, np.float32))
    return jax.make_array_from_callback(
        array.shape, sharding, lambda index: np.array(array[index], np.float32)
    )


def to_tensors(rules: Iterable[Rule], leaves: Tensors) -> dict[str, Any]:
    """Convert our leaves by path to torch tensors by key; arrays keep their type and dtype."""
    tensors: dict[str, Any] = {}
    for rule in select(rules, leaves):
        found = rule.to_torch([leaves[path] for path in rule.paths])
        tensors.update(zip(rule.keys, found, strict=True))
    return tensors


def _join(arrays: Sequence[Any], axis: int) -> Any:
    return arrays[0] if len(arrays) == 1 else arrays[0].__array_namespace__().concat(arrays, axis=axis)


def _split(array: Any, sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum(sizes)
    return [array[..., end - size : end] for end, size in zip(ends, sizes, strict=True)]
