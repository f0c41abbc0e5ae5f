"""Calls of the Mosaic kernels, for `inspect`; none if jax is too old for them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from benchmarks.gpu.cases.case import Case
from pallas_kernels.taylor_attention import mosaic_support, taylor_attention

BATCH, LENGTH, HEADS, BLOCK = 4, 8192, 16, 2048


@dataclass(frozen=True)
class Fixed:
    """Sizes of the programs, which have nothing to tune."""

    chunk: int = 128
    warps: int = 8
    stages: int = 2


def cases() -> list[Case]:
    """Return calls with gradients, which have all kernels; run only by name, until measured."""
    if (mosaic_support.cannot_run() or "").startswith("needs jax"):
        return []
    return [_case(64, packed=False), _case(64, packed=True), _case(112, packed=False)]


def _case(value_size: int, packed: bool) -> Case:
    shape = jax.ShapeDtypeStruct
    arrays = [shape((BATCH, LENGTH, HEADS, size), "bfloat16") for size in (16, 16, value_size)]
    arrays += [shape((BATCH, LENGTH), "int32"), shape((BATCH,), "int32")] * packed

    def function(q: Any, k: Any, v: Any, *packing: Any) -> Any:
        named = dict(zip(("starts", "counts"), packing, strict=False))
        attend = partial(taylor_attention, block=BLOCK, return_state=packed, backend="mosaic", **named)
        results, pull_back = jax.vjp(attend, q, k, v)
        return results, pull_back(results)

    words = f"K16 V{value_size} bfloat16" + " packed" * packed
    given = "mosaic", words, Fixed(), function, tuple(arrays)
    return Case("taylor_attention", *given, on_request=True, backend="mosaic")
