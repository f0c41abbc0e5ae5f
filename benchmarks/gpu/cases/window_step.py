"""Realistic calls of the kernel; see `catalog`."""

import functools

import jax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.tuning import choose
from pallas_kernels.window_step import Rotary, Variant, facts_of, window_step

BATCH = 128

POSITION = 750
"""Number of earlier tokens of every row in a measurement: the windows are full."""

# W, H, G, K = V, dtype, rotary; every row of the tuning table at least once.
_SIZES = [
    (64, 16, 16, 64, "bfloat16", Rotary(64)),  # the paper's window
    (64, 16, 16, 64, "float32", Rotary(64)),
    (65, 16, 16, 64, "bfloat16", Rotary(32)),  # a torch window_size of 128: 64 past keys and its own
    (128, 16, 16, 64, "bfloat16", None),
    (64, 16, 4, 64, "bfloat16", Rotary(64)),
    (129, 16, 1, 128, "bfloat16", Rotary(128, interleaved=True)),
    (64, 16, 16, 112, "bfloat16", Rotary(56)),
    (16, 16, 16, 70, "bfloat16", Rotary(35)),
    (64, 8, 8, 256, "bfloat16", None),  # the widest that is supported
]


def cases() -> list[Case]:
    """Return one call per shape, each with the variant of the tuning table."""
    found = []
    for slots, heads, kv_heads, size, *rest in _SIZES:
        variants = [
            Variant(slots=tile, queries=queries, warps=warps)
            for tile in (16, 32, 64, 128)
            if tile <= pl.next_power_of_2(slots)
            for warps in (1, 2, 4, 8)
            for queries in (1, 2, 4)
            if queries <= heads // kv_heads
            # Elements of the keys' tile per thread; the values take as many registers again.
            if 4 <= tile * pl.next_power_of_2(size) // (32 * warps) <= 64
        ]
        found.append(tunable(_case, slots, heads, kv_heads, size, *rest, variants=variants))
    return found


def _case(
    slots: int,
    heads: int,
    kv_heads: int,
    size: int,
    dtype: str,
    rotary: Rotary | None,
    variant: Variant | None = None,
) -> Case:
    token = [jax.ShapeDtypeStruct((BATCH, n, size), dtype) for n in (heads, kv_heads, kv_heads)]
    ring = jax.ShapeDtypeStruct((BATCH, slots, kv_heads, size), dtype)
    arguments = *token, ring, ring, jax.ShapeDtypeStruct((BATCH,), "int32")
    facts = facts_of(*arguments[:4])
    default = choose("window_step", Variant, **facts)
    variant = default if variant is None else variant
    rotation = f"rotary {rotary.dim}" if rotary else "no rotary"
    shape = f"W{slots} H{heads} G{kv_heads} K{size} {dtype} {rotation}"
    function = functools.partial(window_step, rotary=rotary, variant=variant)
    given = shape, variant, function, arguments, variant == default
    return Case("window_step", "step", *given, fill={5: POSITION}, facts=facts, carried={3: 1, 4: 2})
