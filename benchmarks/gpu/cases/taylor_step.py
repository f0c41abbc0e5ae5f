"""Realistic calls of the kernel; see `catalog`."""

import functools

import jax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.taylor_attention.layout import symmetric_size
from pallas_kernels.taylor_step import Variant, facts_of, taylor_step
from pallas_kernels.tuning import choose

ROWS = (128, 16)
"""B, H"""

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
    found = []
    for key_size, value_size, *dtypes in _SIZES:
        variants = [
            Variant(rows=rows, warps=warps)
            for rows in (8, 16, 32, 64, 128)
            for warps in (1, 2, 4, 8)
            # Fewer elements per thread do not fill its loads; more do not fit its registers.
            if 8 <= rows * pl.next_power_of_2(value_size) // (32 * warps) <= 64
        ]
        found.append(tunable(_case, key_size, value_size, *dtypes, variants=variants))
    return found


def _case(key_size: int, value_size: int, dtype: str, state: str, variant: Variant | None = None) -> Case:
    shape, count = jax.ShapeDtypeStruct, symmetric_size(key_size)
    arguments = [shape((*ROWS, size), dtype) for size in (key_size, key_size, value_size)]
    arguments += [shape((*ROWS, *size), state) for size in ((count, value_size), (count,))]
    facts = facts_of(*arguments[:4])
    default = choose("taylor_step", Variant, **facts)
    variant = default if variant is None else variant
    function = functools.partial(taylor_step, variant=variant)
    words = f"K{key_size} V{value_size} {dtype} state {state}"
    given = words, variant, function, tuple(arguments), variant == default
    return Case("taylor_step", "step", *given, facts=facts, carried={3: 1, 4: 2})
