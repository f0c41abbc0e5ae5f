"""The Mosaic kernels on realistic shapes, for `inspect`; none if jax is too old for them."""

from dataclasses import dataclass
from typing import Any

import jax

from pallas_kernels.case import Case
from pallas_kernels.taylor_attention import mosaic_support

BATCH, LENGTH, HEADS, BLOCKS = 4, 8192, 16, 4


@dataclass(frozen=True)
class Fixed:
    """Sizes of the programs, which have nothing to tune."""

    chunk: int = 128
    warps: int = 8
    stages: int = 2


def cases() -> list[Case]:
    """Return both kernels in the middle of a sequence, plain and packed; run only by name, until measured."""
    if (mosaic_support.cannot_run() or "").startswith("needs jax"):
        return []
    found = [("outputs", 64, False), ("outputs", 112, False), ("outputs", 64, True)]
    return [_case(*sizes) for sizes in (*found, ("key_sums", 64, False), ("key_sums", 64, True))]


def _case(kernel: str, value_size: int, packed: bool) -> Case:
    from pallas_kernels.taylor_attention import mosaic, mosaic_kernel

    shape = jax.ShapeDtypeStruct
    block = LENGTH // BLOCKS
    plan = mosaic.make_plan((BATCH, LENGTH, HEADS, 16), value_size, block, 1e-12, packed)
    keys = shape((BATCH, LENGTH, HEADS, 16), "bfloat16")
    values = shape((BATCH, LENGTH, HEADS, value_size), "bfloat16")
    arrays = [keys, values] if kernel == "key_sums" else [keys, keys, values]
    rows = [shape((BATCH, LENGTH), "int32"), shape((BATCH,), "int32")] if packed else []
    states = [] if kernel == "key_sums" else mosaic_kernel.state_shapes(plan, BLOCKS)
    count, end = len(arrays), len(arrays) + len(rows)

    def function(*arrays: Any) -> Any:
        inputs = list(arrays[:count])
        packing, prefix = arrays[count:end], arrays[end:]
        if kernel == "key_sums":
            return mosaic_kernel.key_sums(plan, *inputs, packing=packing)
        return mosaic_kernel.outputs(plan, *inputs, packing=packing, prefix=prefix, return_state=packed)

    name, words = f"{kernel}_mosaic", f"K16 V{value_size} bfloat16" + " packed" * packed
    options: dict[str, Any] = {"rounds": 64 / Fixed.chunk * -(-value_size // 64), "backend": "mosaic"}
    arguments = (*arrays, *rows, *states)
    return Case("taylor_attention", name, words, Fixed(), function, arguments, on_request=True, **options)
