"""Count floating-point operations of a traced program, and of a training step.

The compiler's own estimate counts a loop's body once, however often it runs. Here the program is walked as
JAX traced it: a scan counts its body times its length, a recomputed block counts twice.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.extend import core

from based_jax.models import LanguageModel, ModelConfig
from based_jax.models.language_model import param_shapes
from based_jax.ops.core.platforms import on_platform
from based_jax.published.tables import training_flops
from based_jax.validate import expect, expect_integer

_FREE = re.compile(
    "broadcast_in_dim|reshape|transpose|squeeze|slice|dynamic_slice|dynamic_update_slice|concatenate|pad|gather|"
    "convert_element_type|bitcast_convert_type|copy|copy_p|iota|stop_gradient|rev|select_n|split|name|"
    "sharding_constraint|optimization_barrier|eq|ne|lt|le|gt|ge|and|or|not|xor|device_put|random_wrap|random_bits|"
    "random_unwrap|random_fold_in|random_split|random_seed|threefry2x32|shift_left|shift_right_logical|"
    "shift_right_arithmetic|empty|empty2|full|create_token|argmax|argmin"
)
"""Primitives that count nothing: movement of data, comparisons and random bits."""

_REDUCTIONS = ("reduce_", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
"""Primitives that count one operation per input number."""


@dataclass(frozen=True)
class Operations:
    """Floating-point operations by kind; a multiplication and an addition are two."""

    products: float = 0.0
    """matrix products and convolutions"""
    transforms: float = 0.0
    """fast Fourier transforms: 5 n log2 n for n complex numbers, half of it for real ones"""
    rest: float = 0.0
    """elementwise operations and reductions, one per number"""
    unknown_loops: int = 0
    """loops whose length is only known at run time; their body counts once"""

    @property
    def total(self) -> float:
        """Return the operations of all kinds."""
        return self.products + self.transforms + self.rest

    def __add__(self, other: "Operations") -> "Operations":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Operations(*(mine + others for mine, others in pairs))

    def times(self, count: int) -> "Operations":
        """Return the operations of `count` calls; the number of unknown loops stays."""
        *work, loops = astuple(self)
        return Operations(*(part * count for part in work), unknown_loops=loops)


def count_operations(function: Callable[..., Any], *arguments: Any) -> Operations:
    """Count a function's operations by tracing it; arguments are arrays or `jax.ShapeDtypeStruct`s.

    Ops are traced without a particular device: their implementations for a CPU or a GPU may have loops whose
    length is only known there.
    """
    with on_platform("any"):
        return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr)


def training_operations(config: ModelConfig, length: int) -> Operations:
    """Count the operations of the forward and backward pass on one sequence, by tracing the whole model.

    Raises:
        ValueError: a length beyond the model's learned positions or long filters.
    """
    _expect_length(config, length)
    model = LanguageModel(config)
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    params = {"params": dict(param_shapes(config))}

    def loss(params: Any, tokens: Any) -> Any:
        logits: Any = model.apply(params, tokens)[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    return count_operations(jax.value_and_grad(loss), params, tokens)


def model_flops(config: ModelConfig, length: int) -> float:
    """Return the operations of a training step on one sequence, as used for a device's utilization.

    The papers' formula if they have one for every layer, else the matrix products and Fourier transforms of
    the traced program without recomputation, the operations that a device's peak rate refers to. Errors are
    those of `training_operations`.
    """
    _expect_length(config, length)
    if (published := training_flops(config, length)) is not None:
        return published
    config = config.replace(remat="none", scan_layers=False)
    first, *_ = kinds = sorted(set(config.schedule))

    def products(schedule: str) -> float:
        counted = training_operations(config.replace(schedule=schedule), length)
        return counted.products + counted.transforms

    # Layers add up, so one of each kind is traced instead of all.
    one = products(first)
    layers = {kind: products(first + kind) - one for kind in kinds}
    return one - layers[first] + sum(layers[kind] for kind in config.schedule)


def _expect_length(config: ModelConfig, length: int) -> None:
    expect_integer("length", length, 1)
    if most := config.max_positions:
        expect(length <= most, "length", length, f"at most max_positions = {most}")


def _of_jaxpr(jaxpr: Any) -> Operations:
    return sum((_of_equation(equation) for equation in jaxpr.eqns), Operations())


def _of_equation(equation: Any) -> Operations:
    name = equation.primitive.name
    if name == "dot_general":
        return Operations(products=_dot_general(equation))
    if name == "conv_general_dilated":
        return Operations(products=_convolution(equation))
    if name == "fft":
        return Operations(transforms=_fft(equation))
    if name == "cond":
        branches = (_of_jaxpr(branch.jaxpr) for branch in equation.params["branches"])
        return max(branches, key=lambda operations: operations.total)  # the most expensive branch
    if name == "while":
        bodies = (equation.params["cond_jaxpr"], equation.params["body_jaxpr"])
        return sum((_of_jaxpr(body.jaxpr) for body in bodies), Operations(unknown_loops=1))
    inner = sum((_of_jaxpr(jaxpr) for jaxpr in _jaxprs(equation)), Operations())
    if name == "scan":
        return inner.times(equation.params["length"])
    if name == "pallas_call":
        return inner.times(math.prod(equation.params["grid_mapping"].grid))
    if name.startswith("scatter"):  # whose program combines two numbers
        added = math.prod(equation.invars[2].aval.shape)
        return Operations(rest=0.0 if name == "scatter" else float(added))
    if inner.total or any(True for _ in _jaxprs(equation)):
        return inner
    if _FREE.fullmatch(name):
        return Operations()
    # One operation per number of the result, or of the input of a reduction.
    variables = equation.invars[:1] if name.startswith(_REDUCTIONS) else equation.outvars
    return Operations(rest=float(sum(math.prod(getattr(item.aval, "shape", ())) for item in variables)))


def _jaxprs(equation: Any) -> Iterator[Any]:
    """Return the programs that the equation calls once."""
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            program = getattr(item, "jaxpr", item)  # which before jax 0.12 has no constants
            if isinstance(program, core.Jaxpr):
                yield program


def _dot_general(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _convolution(equation: Any) -> float:
    numbers, kernel = equation.params["dimension_numbers"], equation.invars[1].aval.shape
    inputs = kernel[numbers.rhs_spec[1]]  # inputs of one group
    taps = math.prod(kernel[axis] for axis in numbers.rhs_spec[2:])
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * inputs * taps


def _fft(equation: Any) -> float:
    size, kind = math.prod(equation.params["fft_lengths"]), equation.params["fft_type"]
    is_real = kind in (lax.FftType.RFFT, lax.FftType.IRFFT)
    whole = equation.outvars[0] if kind == lax.FftType.IRFFT else equation.invars[0]
    rows = math.prod(whole.aval.shape) / size
    return rows * 5.0 * size * math.log2(max(size, 2)) / (2 if is_real else 1)
