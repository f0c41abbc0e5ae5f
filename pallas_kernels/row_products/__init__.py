"""Products of one row with matrices, as in decoding one text: several, or one with a gate, in one launch.

The row may be the norm of a sum, which the launch computes, too.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import rms_norm
from pallas_kernels.checks import expect, expect_array, expect_power_of_two, unsupported
from pallas_kernels.partition import per_channel
from pallas_kernels.row_products import kernel
from pallas_kernels.row_products.kernel import GATES, LOADED, TOGETHER, Variant
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["GATES", "SumNorm", "Variant", "gated_row_product", "row_products", "supports"]

MULTIPLE = 64
"""K must be a multiple of this"""

MAX_SIZE = 2**16
"""largest K: the whole row is read"""


class SumNorm(NamedTuple):
    """A row y = x / sqrt(mean(x^2) + eps) * scale of x = stream + branch + bias; 0 if it is not a number."""

    stream: jax.Array
    """(K,)"""
    branch: jax.Array
    """(K,); its dtype is that of y"""
    scale: jax.Array
    """(K,)"""
    bias: jax.Array | None = None
    """(K,), or None for 0"""
    broken: jax.Array | None = None
    """scalar, where x is NaN whatever the arrays hold, or None"""
    eps: float = 1e-5

    @property
    def shape(self) -> tuple[int, ...]:
        """That of y."""
        return self.branch.shape

    @property
    def dtype(self) -> Any:
        """That of y."""
        return self.branch.dtype

    def arrays(self) -> list[jax.Array]:
        """Return what the kernels add up and multiply."""
        nan = None if self.broken is None else jnp.where(self.broken, jnp.nan, jnp.float32(0)).reshape(1)
        return [x for x in (self.stream, self.branch, self.scale, self.bias, nan) if x is not None]


def supports(x: Any, *matrices: Any, normed: bool = False) -> str | None:
    """Return why the kernels cannot take x (K,) and matrices (N, K) or one (2, F, K) here, or None.

    With `normed` x is a `SumNorm`.
    """
    reason = cannot_launch("pallas") or unsupported({"x": x}, 1, {"x": MAX_SIZE})
    if reason is None and x.shape[0] % MULTIPLE:
        return f"x is {x.shape[0]} long; the kernel takes multiples of {MULTIPLE}"
    for matrix in matrices:
        reason = reason or unsupported({"matrix": matrix}, len(matrix.shape), {})
    if normed and reason is None:
        width = choose("row_products", Variant, **facts_of(x, *matrices)).width
        halves = 2 if len(matrices[0].shape) == 3 else 1
        if (most := min(TOGETHER * width, LOADED // halves)) < x.shape[0]:
            return f"a norm is {x.shape[0]} long; the kernel takes up to {most}"
    return reason


def facts_of(x: Any, *matrices: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    results = sum(matrix.shape[-2] for matrix in matrices)
    return {"multiple": math.gcd(x.shape[0], 1024), "results": results, "gated": int(matrices[0].ndim == 3)}


def row_products(
    x: jax.Array | SumNorm,
    *matrices: jax.Array,
    biases: Sequence[jax.Array] = (),
    variant: Variant | None = None,
) -> tuple[jax.Array, ...]:
    """Multiply one row with several matrices in one launch; sums are float32.

    Results may be sharded. Under `vmap` and in reverse mode `formula` computes it.

    Args:
        x: (K,), K a multiple of 64 up to 65536, of a `SumNorm` up to 8192; float32, bfloat16 or float16.
        matrices: (N, K) each, any N; of the same dtypes.
        biases: none, or (N,) for each matrix, added to the rounded products.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        each @ x, plus its bias, (N,) in x's dtype. With a `SumNorm` also its sum (K,) in stream's dtype,
        NaN if its sum of squares is not finite, and whether that is finite, a boolean.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    variant = _checked("row_products", x, matrices, variant)
    for n, matrix in enumerate(matrices):
        expect_array(f"matrices[{n}]", matrix, (matrix.shape[0], *x.shape))
    expect(len(biases) in (0, len(matrices)), "biases", len(biases), f"none or {len(matrices)}")
    for n, bias in enumerate(biases):
        expect_array(f"biases[{n}]", bias, matrices[n].shape[:1])
    count, results = len(matrices), [f"n{n}" for n in range(len(matrices))]
    operands = [*(f"{name} k" for name in results), *results[: len(biases)]]
    functions = kernel.products, formula
    return _run(functions, x, [*matrices, *biases], operands, results, variant, count=count)


def gated_row_product(
    x: jax.Array | SumNorm, matrix: jax.Array, *, gate: str = "silu", variant: Variant | None = None
) -> tuple[jax.Array, ...]:
    """Multiply one row with both halves of a matrix: (first @ x) * gate(second @ x); see `row_products`.

    Args:
        x: (K,), or a `SumNorm`.
        matrix: (2, F, K).
        gate: "silu" or "sigmoid", computed in float32 of the rounded product.

    Returns:
        (F,) in x's dtype; with a `SumNorm` also its sum, and whether it is a number.
    """
    variant = _checked("gated_row_product", x, (matrix,), variant)
    expect_array("matrix", matrix, (2, matrix.shape[-2], *x.shape))
    expect(gate in GATES, "gate", gate, " or ".join(map(repr, GATES)))
    functions = kernel.gated, gated_formula
    return _run(functions, x, [matrix], ["two f k"], ["f"], variant, gate=gate)


def _checked(name: str, x: Any, matrices: Any, variant: Variant | None) -> Variant:
    reason = supports(x, *matrices, normed=isinstance(x, SumNorm))
    if reason:
        raise ValueError(f"{name}: {reason}")
    if isinstance(x, SumNorm):
        for array in x.arrays()[: 3 if x.bias is None else 4]:
            expect_array("array of the norm", array, x.shape)
    variant = variant or choose("row_products", Variant, **facts_of(x, *matrices))
    expect_power_of_two("width", variant.width)
    expect_power_of_two("results", variant.results)
    expect(x.shape[0] % variant.width == 0, "width", variant.width, f"a divisor of {x.shape[0]}")
    return variant


def _run(
    functions: tuple[Callable[..., Any], Callable[..., Any]],
    x: Any,
    arrays: Sequence[jax.Array],
    operands: list[str],
    results: list[str],
    variant: Variant,
    **options: Any,
) -> tuple[jax.Array, ...]:
    """Run the kernel, or under `vmap` the formula, on the arrays of the row and the others."""
    is_normed = isinstance(x, SumNorm)
    row = x.arrays() if is_normed else [x]
    options |= {"rows": len(row), "eps": x.eps if is_normed else 0.0}
    run, plain = functools.partial(functions[0], variant=variant, **options), functools.partial(functions[1], **options)
    names = ["k" if each.shape == x.shape else "one" for each in row]
    sums = ["k", "one"] if is_normed else []
    found = per_channel(run, plain, [*names, *operands], [*results, *sums], results)(*row, *arrays)
    return (*found[:-1], found[-1][0] < jnp.inf) if is_normed else found


def formula(*arrays: Any, rows: int, count: int, eps: float) -> tuple[jax.Array, ...]:
    """Compute `row_products` of `count` matrices and maybe their biases in plain operations."""
    x, *sums = _row(arrays[:rows], eps)
    matrices, biases = arrays[rows : rows + count], arrays[rows + count :]
    found = tuple(_product(x, matrix).astype(x.dtype) for matrix in matrices)
    return *(map(jnp.add, found, biases) if biases else found), *sums


def gated_formula(*arrays: Any, rows: int, gate: str, eps: float) -> tuple[jax.Array, ...]:
    """Compute `gated_row_product` in plain operations."""
    x, *sums = _row(arrays[:rows], eps)
    value, factor = (_product(x, half).astype(x.dtype).astype(jnp.float32) for half in arrays[rows])
    return (value * GATES[gate](factor)).astype(x.dtype), *sums


def _row(arrays: Sequence[Any], eps: float) -> list[Any]:
    """Return the row; of a `SumNorm` also the sum and its mean square (1,)."""
    if len(arrays) == 1:
        return list(arrays)
    total, y, mean = rms_norm.formula(*arrays, eps=eps)
    return [y, jnp.where(mean < jnp.inf, total, jnp.nan), mean.reshape(1)]


def _product(x: Any, matrix: Any) -> jax.Array:
    return jnp.dot(matrix, x, preferred_element_type=jnp.float32)
