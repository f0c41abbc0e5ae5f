"""Realistic calls of the kernel, for the lowering tests, the compiler's report and tuning."""

import functools

import jax

from benchmarks.gpu.cases.case import Case
from pallas_kernels.softmax_loss import Variant, kernel
from pallas_kernels.tuning import choose

# R, V, vocabulary, dtype of the gradient.
_SIZES = [
    (8192, 50304, 50304, "bfloat16"),  # a chunk of based-360m
    (2048, 32064, 32000, "bfloat16"),  # padded columns
    (300, 1088, 1031, "float32"),  # one block that is not full
]


def cases() -> list[Case]:
    """Return the kernel on each shape, with the variant of the tuning table."""
    return [_case(*sizes, choose("softmax_loss", Variant)) for sizes in _SIZES]


def candidates(case: Case) -> list[Case]:
    """Return `case` with other block sizes, for tuning."""
    shape = next(sizes for sizes in _SIZES if _name(*sizes) == case.shape)
    return [
        _case(*shape, Variant(columns, warps))
        for columns in (1024, 2048, 4096, 8192)
        for warps in (4, 8, 16, 32)
        if 4 <= columns // (32 * warps) <= 32
    ]


def facts(case: Case) -> dict[str, int | str]:
    """Return the facts that select this shape's row of the tuning table: none."""
    del case
    return {}


def _name(rows: int, width: int, vocab: int, dtype: str) -> str:
    del rows, width
    return f"V{vocab} {dtype}"


def _case(rows: int, width: int, vocab: int, dtype: str, variant: Variant) -> Case:
    array = jax.ShapeDtypeStruct
    arguments = array((rows, width), "float32"), array((rows,), "int32"), array((rows,), "float32")
    function = functools.partial(kernel.gradients, vocab=vocab, dtype=dtype, variant=variant)
    is_default = variant == choose("softmax_loss", Variant)
    name = _name(rows, width, vocab, dtype)
    return Case("softmax_loss", "gradients", name, variant, function, arguments, is_default)
