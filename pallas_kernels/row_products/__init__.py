"""Products of one row with matrices, as in decoding one text: several, or one with a gate, in one launch.

The launch may also compute the row, as the norm of a sum, and take the step of a short convolution.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import rms_norm
from pallas_kernels.checks import INTEGERS, expect, expect_array, expect_power_of_two, unsupported
from pallas_kernels.conv_step import formula as conv_formula
from pallas_kernels.conv_step import supports as supports_conv
from pallas_kernels.partition import per_channel
from pallas_kernels.row_products import kernel
from pallas_kernels.row_products.kernel import GATES, Operands, Variant
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["GATES", "SumNorm", "Variant", "conv_row_product", "gated_row_product", "row_products", "supports"]

MULTIPLE = 64
"""K must be a multiple of this"""

MAX_SIZE = 2**16
"""largest K: the whole row is read"""


class SumNorm(NamedTuple):
    """What makes y = z / sqrt(mean(z^2) + eps) * scale, z = stream + x + bias, of a row x."""

    stream: jax.Array | None
    """(K,), or None for 0 in float32"""
    scale: jax.Array
    """(K,)"""
    broken: jax.Array | None = None
    """scalar, where z is NaN whatever the arrays hold, or None"""
    bias: jax.Array | None = None
    """(K,), or None for 0"""
    eps: float = 1e-5


def supports(x: Any, *matrices: Any) -> str | None:
    """Return why the kernels cannot take x (K,) and matrices (N, K) or one (2, F, K) here, or None."""
    reason = cannot_launch("pallas") or unsupported({"x": x}, 1, {"x": MAX_SIZE})
    if reason is None and x.shape[0] % MULTIPLE:
        return f"x is {x.shape[0]} long; the kernel takes multiples of {MULTIPLE}"
    for matrix in matrices:
        rank = 3 if len(matrix.shape) == 3 else 2
        reason = reason or unsupported({"matrix": matrix}, rank, {})
    return reason


def facts_of(x: Any, *matrices: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    results = sum(matrix.shape[-2] for matrix in matrices)
    return {"multiple": math.gcd(x.shape[0], 1024), "results": results, "gated": int(matrices[0].ndim == 3)}


def row_products(
    x: jax.Array,
    *matrices: jax.Array,
    biases: Sequence[jax.Array] = (),
    norm: SumNorm | None = None,
    variant: Variant | None = None,
) -> tuple[jax.Array, ...]:
    """Multiply one row with several matrices in one launch; sums are float32.

    Results may be sharded. Under `vmap` and in reverse mode `formula` computes it.

    Args:
        x: (K,), K a multiple of 64 up to 65536; float32, bfloat16 or float16.
        matrices: (N, K) each, any N; of the same dtypes.
        biases: none, or (N,) for each matrix, added to the rounded products.
        norm: multiply y of this norm in place of x, in x's dtype, or 0 if it is not a number.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        each @ x, plus its bias, (N,) in x's dtype. With a norm also z (K,) in stream's dtype, NaN if its sum
        of squares is not finite, and whether that is finite, a boolean.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    variant = _checked("row_products", x, matrices, variant)
    for n, matrix in enumerate(matrices):
        expect_array(f"matrices[{n}]", matrix, (matrix.shape[0], len(x)))
    expect(len(biases) in (0, len(matrices)), "biases", len(biases), f"none or {len(matrices)}")
    for n, bias in enumerate(biases):
        expect_array(f"biases[{n}]", bias, matrices[n].shape[:1])
    return _run(x, matrices, norm, variant, biases=tuple(biases))


def gated_row_product(
    x: jax.Array,
    matrix: jax.Array,
    *,
    gate: str = "silu",
    norm: SumNorm | None = None,
    variant: Variant | None = None,
) -> tuple[jax.Array, ...]:
    """Multiply one row with both halves of a matrix: (first @ x) * gate(second @ x); see `row_products`.

    Args:
        x: (K,).
        matrix: (2, F, K).
        gate: "silu" or "sigmoid", computed in float32 of the rounded product.

    Returns:
        (F,) in x's dtype, and what `row_products` returns with a norm.
    """
    variant = _checked("gated_row_product", x, (matrix,), variant)
    expect_array("matrix", matrix, (2, matrix.shape[-2], len(x)))
    expect(gate in GATES, "gate", gate, " or ".join(map(repr, GATES)))
    return _run(x, [matrix], norm, variant, gate=gate)


def conv_row_product(
    x: jax.Array,
    matrix: jax.Array,
    history: jax.Array,
    age: jax.Array,
    taps: jax.Array,
    bias: jax.Array | None = None,
    added: jax.Array | None = None,
    *,
    norm: SumNorm | None = None,
    variant: Variant | None = None,
) -> tuple[jax.Array, ...]:
    """Take the gated `conv_step` of one row's products with both halves of a matrix; see `row_products`.

    Args:
        x: (K,).
        matrix: (2, E, K).
        history, age, taps, bias: those of `conv_step`, for one row.
        added: (2, E), added to the rounded products, or None.

    Returns:
        y: (E,) in x's dtype; the new history, (1, T - 1, E), and what `row_products` returns with a norm.
    """
    variant = _checked("conv_row_product", x, (matrix,), variant)
    channels = matrix.shape[-2]
    expect_array("matrix", matrix, (2, channels, len(x)))
    if reason := supports_conv(jax.ShapeDtypeStruct((1, 2, channels), x.dtype), taps):
        raise ValueError(f"conv_row_product: {reason}")
    expect_array("history", history, (1, len(taps) - 1, channels))
    expect_array("age", age, (1,), INTEGERS)
    expect_array("taps", taps, (len(taps), channels))
    biases, conv = [() if each is None else (each,) for each in (added, bias)]
    for name, given, shape in (("added", biases, (2, channels)), ("bias", conv, (channels,))):
        for each in given:
            expect_array(name, each, shape)
    conv = history[0], age.astype(jnp.int32), taps, *conv
    y, history, *sums = _run(x, [matrix], norm, variant, biases=biases, conv=conv)
    return y, history[None], *sums


def _checked(name: str, x: Any, matrices: Any, variant: Variant | None) -> Variant:
    reason = supports(x, *matrices)
    if reason:
        raise ValueError(f"{name}: {reason}")
    variant = variant or choose("row_products", Variant, **facts_of(x, *matrices))
    expect_power_of_two("width", variant.width)
    expect_power_of_two("results", variant.results)
    expect(len(x) % variant.width == 0, "width", variant.width, f"a divisor of {len(x)}")
    return variant


def _run(
    x: jax.Array,
    matrices: Any,
    norm: Any,
    variant: Variant,
    gate: Any = None,
    biases: Any = (),
    conv: Any = (),
) -> tuple[jax.Array, ...]:
    row, names = (x,), [f"n{n}" for n in range(len(matrices))]
    if norm is not None:
        nan = None if norm.broken is None else jnp.where(norm.broken, jnp.nan, jnp.float32(0)).reshape(1)
        row = x, norm.scale, norm.stream, norm.bias, nan
        for each in jax.tree.leaves(row[:4]):
            expect_array("array of norm", each, x.shape)
    arrays, structure = jax.tree.flatten(Operands(row, tuple(matrices), biases, conv))
    options: dict[str, Any] = {"structure": structure, "gate": gate, "eps": norm.eps if norm else 0}
    run = functools.partial(kernel.products, **options, variant=variant)
    operands = ["k" if each.shape == x.shape else "one" for each in jax.tree.leaves(row)]
    lines = [f"two {name}" if gate or conv else name for name in names]
    operands += [*(f"{line} k" for line in lines), *lines[: len(biases)]]
    operands += ["h n0", "one", "t n0", "n0"][: len(conv)]
    results = [*names, *(["h n0"] if conv else []), *([] if norm is None else ["k", "one"])]
    found = per_channel(run, functools.partial(formula, **options), operands, results, names)(*arrays)
    return found if norm is None else (*found[:-1], found[-1][0] < jnp.inf)


def formula(*arrays: Any, structure: Any, gate: str | None, eps: float) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.products` in plain operations."""
    row, matrices, biases, conv = jax.tree.unflatten(structure, arrays)
    x, sums = row[0], ()
    if len(row) > 1:
        _, scale, stream, bias, nan = row
        stream, x = (each if each is None else each[None, None] for each in (stream, x))
        addends = stream, x, bias, None if nan is None else nan[None]
        total, x, mean = rms_norm.formula(scale, *jax.tree.leaves(addends), eps=eps)
        total, x, mean = total[0, 0], x[0, 0], mean[0]
        sums = jnp.where(mean < jnp.inf, total, jnp.nan), mean
    dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
    found = [dot(matrix, x).astype(x.dtype) for matrix in matrices]
    if biases:
        found = list(map(jnp.add, found, biases))
    if gate:
        value, factor = found[0].astype(jnp.float32)
        found = [(value * GATES[gate](factor)).astype(x.dtype)]
    if conv:
        found = [each[0] for each in conv_formula(found[0][None], conv[0][None], *conv[1:], gated=True)]
    return *found, *sums
