"""Realistic calls of the kernels; see `catalog`."""

import functools

import jax

from benchmarks.gpu.cases.case import Case, tunable
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
    found = []
    for length, *rest in _SIZES:
        variants = [
            Variant(width=width, results=results, warps=warps)
            for width in (64, 256, 512, 1024, 2048)
            if length % width == 0
            for results in (2, 4, 8, 16)
            for warps in (2, 4, 8)
            if 4 <= width * results // (32 * warps) <= 64  # numbers of a tile per thread
        ]
        found.append(tunable(_case, length, *rest, variants=variants))
    return found


def _case(length: int, results: tuple, dtype: str, variant: Variant | None = None) -> Case:
    is_gated = isinstance(results[0], tuple)
    sizes = [(*(count if is_gated else (count,)), length) for count in results]
    arguments = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in ((length,), *sizes))
    facts = facts_of(*arguments)
    default = choose("row_products", Variant, **facts)
    variant = default if variant is None else variant
    function = functools.partial(gated_row_product if is_gated else row_products, variant=variant)
    shape = f"K{length} N{'+'.join(str(size[-2]) for size in sizes)} {dtype}"
    given = shape, variant, function, arguments, variant == default
    return Case("row_products", "gated" if is_gated else "several", *given, facts=facts)
