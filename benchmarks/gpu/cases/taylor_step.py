"""Realistic calls of the kernel, for the lowering tests, the compiler's report and tuning."""

import functools

import jax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case
from pallas_kernels.taylor_attention.layout import symmetric_size
from pallas_kernels.taylor_step import Variant, facts_of, taylor_step
from pallas_kernels.tuning import choose

BATCH, HEADS = 128, 16

CARRIED = {3: 1, 4: 2}
"""Argument -> the result that replaces it in the next call: the state."""

# K, V, dtype of q, k, v, dtype of the state; every row of the tuning table at least once.
_SIZES = [
    (16, 64, "bfloat16", "float32"),  # a head of the released 360m model
    (16, 64, "bfloat16", "bfloat16"),
    (16, 64, "float32", "float32"),
    (16, 112, "bfloat16", "float32"),  # and of the 1.3b model
    (16, 128, "bfloat16", "float32"),
    (16, 256, "bfloat16", "float32"),
    (8, 64, "bfloat16", "float32"),
    (24, 64, "bfloat16", "float32"),
    (32, 64, "bfloat16", "float32"),
    (32, 256, "float32", "float32"),  # the largest that is supported
]


def cases() -> list[Case]:
    """Return one call per shape, each with the variant of the tuning table."""
    return [_case(_arguments(*sizes)) for sizes in _SIZES]


def candidates(case: Case) -> list[Case]:
    """Return `case` with other block sizes, for tuning."""
    value_size = case.arguments[2].shape[-1]
    return [
        _case(case.arguments, Variant(rows=rows, warps=warps))
        for rows in (8, 16, 32, 64, 128)
        for warps in (1, 2, 4, 8)
        # Fewer elements per thread do not fill its loads; more do not fit its registers.
        if 8 <= rows * pl.next_power_of_2(value_size) // (32 * warps) <= 64
    ]


def facts(case: Case) -> dict[str, int | str]:
    """Return the facts that select this shape's row of the tuning table."""
    return facts_of(*case.arguments[:4])


def _arguments(key_size: int, value_size: int, dtype: str, state: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    rows, count = (BATCH, HEADS), symmetric_size(key_size)
    tokens = (jax.ShapeDtypeStruct((*rows, size), dtype) for size in (key_size, key_size, value_size))
    sums = (jax.ShapeDtypeStruct((*rows, *size), state) for size in ((count, value_size), (count,)))
    return *tokens, *sums


def _case(arguments: tuple[jax.ShapeDtypeStruct, ...], variant: Variant | None = None) -> Case:
    q, _, v, kv, _ = arguments
    default = choose("taylor_step", Variant, **facts_of(*arguments[:4]))
    variant = default if variant is None else variant
    shape = f"K{q.shape[-1]} V{v.shape[-1]} {q.dtype} state {kv.dtype}"
    function = functools.partial(taylor_step, variant=variant)
    return Case("taylor_step", "step", shape, variant, function, arguments, variant == default)
