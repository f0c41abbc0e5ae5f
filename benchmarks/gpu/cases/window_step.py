"""Realistic calls of the kernel, for the lowering tests, the compiler's report and tuning."""

import functools
import inspect

import jax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case
from pallas_kernels.tuning import choose
from pallas_kernels.window_step import Rotary, Variant, facts_of, window_step

BATCH = 128

CARRIED = {3: 1, 4: 2}
"""Argument -> the result that replaces it in the next call: the rings."""

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
    return [_case(_arguments(*sizes[:-1]), sizes[-1]) for sizes in _SIZES]


def candidates(case: Case) -> list[Case]:
    """Return `case` with other block sizes, for tuning."""
    slots, kv_heads, size = case.arguments[3].shape[1:]
    heads = case.arguments[0].shape[1]
    rotary = inspect.signature(case.function).parameters["rotary"].default
    return [
        _case(case.arguments, rotary, Variant(slots=tile, queries=queries, warps=warps))
        for tile in (16, 32, 64, 128)
        if tile <= pl.next_power_of_2(slots)
        for warps in (1, 2, 4, 8)
        for queries in (1, 2, 4)
        if queries <= heads // kv_heads
        # Elements of the keys' tile per thread; the values take as many registers again.
        if 4 <= tile * pl.next_power_of_2(size) // (32 * warps) <= 64
    ]


def facts(case: Case) -> dict[str, int | str]:
    """Return the facts that select this shape's row of the tuning table."""
    return facts_of(*case.arguments[:4])


def _arguments(
    slots: int, heads: int, kv_heads: int, size: int, dtype: str
) -> tuple[jax.ShapeDtypeStruct, ...]:
    token = [jax.ShapeDtypeStruct((BATCH, n, size), dtype) for n in (heads, kv_heads, kv_heads)]
    ring = jax.ShapeDtypeStruct((BATCH, slots, kv_heads, size), dtype)
    return *token, ring, ring, jax.ShapeDtypeStruct((BATCH,), "int32")


def _case(
    arguments: tuple[jax.ShapeDtypeStruct, ...], rotary: Rotary | None, variant: Variant | None = None
) -> Case:
    q, k, _, k_ring, _, _ = arguments
    default = choose("window_step", Variant, **facts_of(*arguments[:4]))
    variant = default if variant is None else variant
    rotation = f"rotary {rotary.dim}" if rotary else "no rotary"
    shape = f"W{k_ring.shape[1]} H{q.shape[1]} G{k.shape[1]} K{q.shape[-1]} {q.dtype} {rotation}"
    function = functools.partial(window_step, rotary=rotary, variant=variant)
    given = shape, variant, function, arguments, variant == default
    return Case("window_step", "step", *given, fill={5: POSITION})
