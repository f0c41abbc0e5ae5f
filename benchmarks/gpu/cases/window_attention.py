"""Realistic calls of the kernels, for the lowering tests, the compiler's report and tuning."""

from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case
from pallas_kernels.window_attention.blocks import Variant
from pallas_kernels.window_attention.function import Call, facts_of
from pallas_kernels.window_attention.gradients import key_and_value_gradients, query_gradients
from pallas_kernels.window_attention.outputs import outputs

KERNELS = {"outputs": outputs, "dq": query_gradients, "dkv": key_and_value_gradients}


@dataclass(frozen=True)
class Shape:
    """One call."""

    left: int
    heads: int
    kv_heads: int
    size: int
    """K = V"""
    dtype: str
    packed: bool = False
    batch: int = 16
    length: int = 2048

    def __str__(self) -> str:
        name = f"L{self.left} H{self.heads} G{self.kv_heads} K{self.size} {self.dtype}"
        return name + " packed" * self.packed


SHAPES = (
    Shape(63, 16, 16, 64, "bfloat16"),  # the paper's window, a layer of Based-360M
    Shape(63, 16, 16, 64, "bfloat16", packed=True),
    Shape(63, 16, 16, 112, "bfloat16"),  # of Based-1.3B
    Shape(127, 16, 4, 128, "bfloat16"),
    Shape(15, 16, 16, 64, "float16"),
    Shape(63, 16, 16, 64, "float32"),
    Shape(127, 16, 16, 128, "float32"),
)


def cases() -> list[Case]:
    """Return each kernel on each shape, with the variant of the tuning table."""
    return [_case(kernel, shape) for shape in SHAPES for kernel in KERNELS]


def candidates(case: Case) -> list[Case]:
    """Return `case` with other block sizes, for tuning."""
    shape = _shape(case)
    sizes = (32, 64, 128) if shape.dtype != "float32" else (16, 32, 64)
    width = pl.next_power_of_2(shape.size)
    return [
        _case(case.kernel, shape, Variant(queries, keys, warps, stages))
        for queries in sizes
        for keys in sizes
        for warps in (2, 4, 8)
        for stages in (1, 2)
        # Elements of the scores and of an accumulator per thread: too few leave the tensor cores idle.
        if 16 <= max(queries * keys, max(queries, keys) * width) // (32 * warps) <= 64
    ]


def facts(case: Case) -> dict[str, int | str]:
    """Return the facts that select this shape's row of the tuning table."""
    shape = _shape(case)
    return facts_of(case.kernel, shape.size, shape.size, shape.dtype)


def _shape(case: Case) -> Shape:
    return next(shape for shape in SHAPES if str(shape) == case.shape)


def _case(kernel: str, shape: Shape, variant: Variant | None = None) -> Case:
    given = () if variant is None else ((kernel, variant),)
    call = Call(shape.left, shape.size**-0.5, shape.packed, given)
    tokens, shared = (shape.batch, shape.length, shape.kv_heads), shape.heads // shape.kv_heads
    query = jax.ShapeDtypeStruct((*tokens, shared, shape.size), shape.dtype)
    key = jax.ShapeDtypeStruct((*tokens, shape.size), shape.dtype)
    number = jax.ShapeDtypeStruct((shape.batch, shape.kv_heads, shared, shape.length), "float32")
    arrays = {
        "outputs": [query, key, key],
        "dq": [query, key, key, query, query, number],
        "dkv": [query, key, key, query, number, number],
    }[kernel]
    count, fill = len(arrays), {}
    if shape.packed:  # one segment, no padding
        fill = {count: 0, count + 1: shape.length}
        arrays += [
            jax.ShapeDtypeStruct(tokens[:2], "int32"),
            jax.ShapeDtypeStruct(tokens[:1], "int32"),
        ]
    plan = call.plan(kernel, query, key)

    def function(*arrays: jax.Array) -> Any:
        return KERNELS[kernel](plan, arrays[:count], arrays[count:])

    chosen = Variant(plan.queries, plan.keys, plan.warps, plan.stages)
    name, default = str(shape), variant is None or _case(kernel, shape).variant == variant
    return Case("window_attention", kernel, name, chosen, function, tuple(arrays), default, fill=fill)
