"""Realistic calls of the kernels, for the lowering tests, the compiler's report and tuning."""

import functools

import jax

from benchmarks.gpu.cases.case import Case
from pallas_kernels.row_products import Variant, facts_of, gated_row_product, row_products
from pallas_kernels.tuning import choose

# K, then the results of each matrix, or of two halves; every row of the tuning table at least once.
_SIZES = [
    (1024, (1024, 1024, 1024), "bfloat16"),  # sliding_window of based-360m
    (1024, (256, 256, 1024), "bfloat16"),  # its linear_attention
    (2048, (1024,), "bfloat16"),  # the second product of its MLP
    (1024, ((2, 2048),), "bfloat16"),  # its MLP
    (1792, ((2, 3584),), "bfloat16"),  # based-1b's
    (1024, ((2, 2730),), "float16"),  # a last block that is not full
    (192, (192, 64), "bfloat16"),
]


def cases() -> list[Case]:
    """Return one call per shape, each with the variant of the tuning table."""
    return [_case(*sizes) for sizes in _SIZES]


def candidates(case: Case) -> list[Case]:
    """Return `case` with other block sizes, for tuning."""
    x, *matrices = case.arguments
    sizes = tuple(matrix.shape[:2] if len(matrix.shape) == 3 else matrix.shape[0] for matrix in matrices)
    return [
        _case(x.shape[0], sizes, x.dtype.name, Variant(width=width, results=results, warps=warps))
        for width in (64, 256, 512, 1024, 2048)
        if x.shape[0] % width == 0
        for results in (2, 4, 8, 16)
        for warps in (2, 4, 8)
        if 4 <= width * results // (32 * warps) <= 64  # numbers of a tile per thread
    ]


def facts(case: Case) -> dict[str, int | str]:
    """Return the facts that select this shape's row of the tuning table."""
    return facts_of(*case.arguments)


def _case(length: int, results: tuple, dtype: str, variant: Variant | None = None) -> Case:
    is_gated = isinstance(results[0], tuple)
    sizes = [(*(count if is_gated else (count,)), length) for count in results]
    arguments = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in ((length,), *sizes))
    default = choose("row_products", Variant, **facts_of(*arguments))
    variant = default if variant is None else variant
    function = functools.partial(gated_row_product if is_gated else row_products, variant=variant)
    counts = "+".join(str(shape[-2]) for shape in sizes)
    kernel = "gated" if is_gated else "several"
    shape = f"K{length} N{counts} {dtype}"
    return Case("row_products", kernel, shape, variant, function, arguments, variant == default)
