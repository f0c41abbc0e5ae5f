"""Realistic calls of the kernels; see `catalog`."""

from typing import Any

import jax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.window_attention.blocks import Variant
from pallas_kernels.window_attention.function import Call, facts_of
from pallas_kernels.window_attention.kernels import key_and_value_gradients, outputs, query_gradients

KERNELS = {"outputs": outputs, "dq": query_gradients, "dkv": key_and_value_gradients}

BATCH, LENGTH = 16, 2048

# Past keys, H, G, K = V, dtype, whether there are segments and padding.
_SIZES = (
    (63, 16, 16, 64, "bfloat16", False),  # the paper's window, a layer of Based-360M
    (63, 16, 16, 64, "bfloat16", True),
    (63, 16, 16, 112, "bfloat16", False),  # of Based-1.3B
    (127, 16, 4, 128, "bfloat16", False),
    (15, 16, 16, 64, "float16", False),
    (63, 16, 16, 64, "float32", False),
    (127, 16, 16, 128, "float32", False),
)


def cases() -> list[Case]:
    """Return each kernel on each shape, with the variant of the tuning table."""
    found = []
    for sizes in _SIZES:
        _, _, _, size, dtype, _ = sizes
        blocks, width = (16, 32, 64) if dtype == "float32" else (32, 64, 128), pl.next_power_of_2(size)
        variants = [
            Variant(queries, keys, warps, stages)
            for queries in blocks
            for keys in blocks
            for warps in (2, 4, 8)
            for stages in (1, 2)
            # Elements of the scores and of an accumulator per thread: too few leave the tensor cores idle.
            if 16 <= max(queries * keys, max(queries, keys) * width) // (32 * warps) <= 64
        ]
        found += [tunable(_case, kernel, *sizes, variants=variants) for kernel in KERNELS]
    return found


def _case(
    kernel: str,
    left: int,
    heads: int,
    kv_heads: int,
    size: int,
    dtype: str,
    packed: bool,
    variant: Variant | None = None,
) -> Case:
    rows, shared = (BATCH, LENGTH), heads // kv_heads
    query = jax.ShapeDtypeStruct((*rows, kv_heads, shared, size), dtype)
    key = jax.ShapeDtypeStruct((*rows, kv_heads, size), dtype)
    number = jax.ShapeDtypeStruct((BATCH, kv_heads, shared, LENGTH), "float32")
    arrays = {
        "outputs": [query, key, key],
        "dq": [query, key, key, query, query, number],
        "dkv": [query, key, key, query, number, number],
    }[kernel]
    count, fill = len(arrays), {}
    if packed:  # one segment, no padding
        fill = {count: 0, count + 1: LENGTH}
        arrays += [jax.ShapeDtypeStruct(rows, "int32"), jax.ShapeDtypeStruct(rows[:1], "int32")]

    def plan(*variants: Any) -> Any:
        return Call(left, size**-0.5, packed, variants).plan(kernel, query, key)

    in_use = plan()
    chosen = in_use if variant is None else plan((kernel, variant))

    def function(*arrays: jax.Array) -> Any:
        return KERNELS[kernel](chosen, arrays[:count], arrays[count:])

    name = f"L{left} H{heads} G{kv_heads} K{size} {dtype}" + " packed" * packed
    given = name, _variant(chosen), function, tuple(arrays), _variant(chosen) == _variant(in_use)
    return Case("window_attention", kernel, *given, fill=fill, facts=facts_of(kernel, size, size, dtype))


def _variant(plan: Any) -> Variant:
    return Variant(plan.queries, plan.keys, plan.warps, plan.stages)
