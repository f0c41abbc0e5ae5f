"""Realistic calls of the kernel; see `catalog`."""

import functools

import jax

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.conv_step import Variant, conv_step, facts_of
from pallas_kernels.tuning import choose

AGE = 750
"""Number of earlier tokens of every row in a measurement."""

# B, E, T, bias, gated, dtype.
_SIZES = [
    (1, 2048, 3, False, True, "bfloat16"),  # gated_conv of based-360m
    (128, 2048, 3, False, True, "bfloat16"),
    (128, 2048, 4, True, False, "bfloat16"),  # mamba-360m
    (16, 1000, 2, True, True, "float32"),  # a last block that is not full
]


def cases() -> list[Case]:
    """Return one call per shape, each with the variant of the tuning table."""
    variants = [
        Variant(channels=channels, warps=warps)
        for channels in (128, 256, 512, 1024)
        for warps in (1, 2, 4, 8)
        if 1 <= channels // (32 * warps) <= 8
    ]
    return [tunable(_case, *sizes, variants=variants) for sizes in _SIZES]


def _case(
    batch: int, channels: int, taps: int, bias: bool, gated: bool, dtype: str, variant: Variant | None = None
) -> Case:
    shapes = [(batch, 2, channels), (batch, taps - 1, channels), (batch,), (taps, channels)]
    dtypes = [dtype, dtype, "int32", dtype]
    arguments = [jax.ShapeDtypeStruct(*pair) for pair in zip(shapes, dtypes, strict=True)]
    arguments += [jax.ShapeDtypeStruct((channels,), dtype)] * bias
    facts = facts_of(arguments[0])
    default = choose("conv_step", Variant, **facts)
    variant = default if variant is None else variant
    function = functools.partial(conv_step, gated=gated, variant=variant)
    shape = f"B{batch} E{channels} T{taps} {dtype}{' bias' * bias}{' gated' * gated}"
    given = shape, variant, function, tuple(arguments), variant == default
    return Case("conv_step", "step", *given, fill={2: AGE}, facts=facts, carried={1: 1})
