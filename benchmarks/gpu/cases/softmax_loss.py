"""Realistic calls of the kernel; see `catalog`."""

import functools

import jax

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.softmax_loss import Variant, gradients
from pallas_kernels.tuning import choose

# R, V, vocabulary, dtype of the gradient.
_SIZES = [
    (8192, 50304, 50304, "bfloat16"),  # a chunk of based-360m
    (2048, 32064, 32000, "bfloat16"),  # padded columns
    (300, 1088, 1031, "float32"),  # one block that is not full
]


def cases() -> list[Case]:
    """Return the kernel on each shape, with the variant of the tuning table."""
    variants = [
        Variant(columns, warps)
        for columns in (1024, 2048, 4096, 8192)
        for warps in (4, 8, 16, 32)
        if 4 <= columns // (32 * warps) <= 32
    ]
    return [tunable(_case, *sizes, variants=variants) for sizes in _SIZES]


def _case(rows: int, width: int, vocab: int, dtype: str, variant: Variant | None = None) -> Case:
    array, default = jax.ShapeDtypeStruct, choose("softmax_loss", Variant)
    variant = default if variant is None else variant
    arguments = array((rows, width), "float32"), array((rows,), "int32"), array((rows,), "float32")
    function = functools.partial(gradients, vocab=vocab, dtype=dtype, variant=variant)
    name = f"V{vocab} {dtype}"
    return Case("softmax_loss", "gradients", name, variant, function, arguments, variant == default)
