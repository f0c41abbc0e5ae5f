"""Muon: the momentum of each matrix, made orthogonal (K. Jordan et al. 2024; Liu et al. 2025, 2502.16982).

Matrices are the kernels of layers. Embeddings, heads, norms, biases, convolutions, filters of long
convolutions and parameters of a recurrence get Adam's steps.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from based_jax.training.parameter_names import FILTER, names_of
from based_jax.typing import Params

RMS = 0.2
"""Root mean square of a matrix's step at a learning rate of 1. That of AdamW's steps is about the same, so
that both share a learning rate and a weight decay (2502.16982, section 2.2)."""

_Axes = tuple[tuple[int, ...], tuple[int, ...]]


def muon_or(adam: optax.GradientTransformation, moment_dtype: str) -> optax.GradientTransformation:
    """Return Muon's steps for matrices and those of `adam` for other parameters, without learning rate."""

    def numbers(params: Params) -> Any:
        return _map(lambda axes, _: axes and MuonDimensionNumbers(*axes), params)

    def labels(params: Params) -> Any:
        return _map(lambda axes, _: "adam" if axes is None else "muon", params)

    orthogonal = scale_by_muon(mu_dtype=moment_dtype, weight_dimension_numbers=numbers)
    rescaled = optax.stateless(lambda steps, params: _map(_rescale, steps))
    return optax.partition({"muon": optax.chain(orthogonal, rescaled), "adam": adam}, labels)


def matrix_axes(path: tuple[Any, ...], ndim: int) -> _Axes | None:
    """Return the axes of a kernel's inputs and of its outputs; None if the parameter is no matrix.

    A kernel (inputs, parts, outputs) of a fused projection is a matrix per part. Heads and their channels
    together are the outputs of a projection, and the inputs of the last one.
    """
    names = names_of(path)
    if names[-1] != "kernel" or FILTER in names or ndim not in (2, 3):
        return None
    if ndim == 2:
        return (0,), (1,)
    layer = names[-2] if len(names) > 1 else ""
    if layer == "in_proj":
        return (0,), (2,)
    return ((0, 1), (2,)) if layer == "out" else ((0,), (1, 2))


def _map(function: Callable[[_Axes | None, Any], Any], tree: Params) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, x: function(matrix_axes(path, x.ndim), x), tree)


def _rescale(axes: _Axes | None, step: Any) -> Any:
    """Scale an orthogonal matrix to `RMS`: that of an (m, n) one is 1 / sqrt(max(m, n))."""
    sides = (math.prod(step.shape[axis] for axis in side) for side in axes or ())
    return step * (RMS * math.sqrt(max(sides)))
