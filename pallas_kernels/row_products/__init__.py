"""Products of one row with matrices, as in decoding one text: several, or one with a gate, in one launch."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.checks import expect, expect_array, expect_power_of_two, unsupported
from pallas_kernels.partition import per_channel
from pallas_kernels.row_products import kernel
from pallas_kernels.row_products.kernel import GATES, Variant
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["GATES", "Variant", "gated_row_product", "row_products", "supports"]

MULTIPLE = 64
"""K must be a multiple of this"""

MAX_SIZE = 2**16
"""largest K: the whole row is read"""


def supports(x: Any, *matrices: Any) -> str | None:
    """Return why the kernels cannot take x (K,) and matrices (N, K) or one (2, F, K) here, or None."""
    reason = cannot_launch("pallas") or unsupported({"x": x}, 1, {"x": MAX_SIZE})
    if reason is None and x.shape[0] % MULTIPLE:
        return f"x is {x.shape[0]} long; the kernel takes multiples of {MULTIPLE}"
    for matrix in matrices:
        reason = reason or unsupported({"matrix": matrix}, len(matrix.shape), {})
    return reason


def facts_of(x: Any, *matrices: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    results = sum(matrix.shape[-2] for matrix in matrices)
    return {"multiple": math.gcd(x.shape[0], 1024), "results": results, "gated": int(matrices[0].ndim == 3)}


def row_products(
    x: jax.Array, *matrices: jax.Array, biases: Sequence[jax.Array] = (), variant: Variant | None = None
) -> tuple[jax.Array, ...]:
    """Multiply one row with several matrices in one launch; sums are float32.

    Results may be sharded. Under `vmap` and in reverse mode `formula` computes it.

    Args:
        x: (K,), K a multiple of 64 up to 65536; float32, bfloat16 or float16.
        matrices: (N, K) each, any N; of the same dtypes.
        biases: none, or (N,) for each matrix, added to the rounded products.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        each @ x, plus its bias, (N,) in x's dtype.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    variant = _checked("row_products", x, matrices, variant)
    for n, matrix in enumerate(matrices):
        expect_array(f"matrices[{n}]", matrix, (matrix.shape[0], len(x)))
    expect(len(biases) in (0, len(matrices)), "biases", len(biases), f"none or {len(matrices)}")
    for n, bias in enumerate(biases):
        expect_array(f"biases[{n}]", bias, matrices[n].shape[:1])
    count, results = len(matrices), [f"n{n}" for n in range(len(matrices))]
    run = functools.partial(kernel.products, count=count, variant=variant)
    operands = ["k", *(f"{name} k" for name in results), *results[: len(biases)]]
    plain = functools.partial(formula, count=count)
    return per_channel(run, plain, operands, results, results)(x, *matrices, *biases)


def gated_row_product(
    x: jax.Array, matrix: jax.Array, *, gate: str = "silu", variant: Variant | None = None
) -> jax.Array:
    """Multiply one row with both halves of a matrix: (first @ x) * gate(second @ x); see `row_products`.

    Args:
        x: (K,).
        matrix: (2, F, K).
        gate: "silu" or "sigmoid", computed in float32 of the rounded product.

    Returns:
        (F,) in x's dtype.
    """
    variant = _checked("gated_row_product", x, (matrix,), variant)
    expect_array("matrix", matrix, (2, matrix.shape[-2], len(x)))
    expect(gate in GATES, "gate", gate, " or ".join(map(repr, GATES)))
    run = functools.partial(kernel.gated, gate=gate, variant=variant)
    plain = functools.partial(gated_formula, gate=gate)
    return per_channel(run, plain, ["k", "two f k"], ["f"], ["f"])(x, matrix)[0]


def _checked(name: str, x: Any, matrices: Any, variant: Variant | None) -> Variant:
    reason = supports(x, *matrices)
    if reason:
        raise ValueError(f"{name}: {reason}")
    variant = variant or choose("row_products", Variant, **facts_of(x, *matrices))
    expect_power_of_two("width", variant.width)
    expect_power_of_two("results", variant.results)
    expect(len(x) % variant.width == 0, "width", variant.width, f"a divisor of {len(x)}")
    return variant


def formula(x, *arrays, count: int):
    """Compute `row_products` of `count` matrices and maybe their biases in plain operations."""
    found = tuple(_product(x, matrix).astype(x.dtype) for matrix in arrays[:count])
    return tuple(map(jnp.add, found, arrays[count:])) if arrays[count:] else found


def gated_formula(x, matrix, *, gate: str):
    """Compute `gated_row_product` in plain operations."""
    value, factor = (_product(x, matrix[half]).astype(x.dtype).astype(jnp.float32) for half in (0, 1))
    return ((value * GATES[gate](factor)).astype(x.dtype),)


def _product(x, matrix):
    return jnp.dot(matrix, x, preferred_element_type=jnp.float32)
