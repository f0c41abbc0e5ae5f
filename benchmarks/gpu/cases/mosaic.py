"""The Mosaic kernels on realistic shapes, for `inspect`; none if jax is too old for them."""

from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.gpu.cases.case import Case
from pallas_kernels.taylor_attention import mosaic_support

BATCH, LENGTH, HEADS, BLOCKS = 4, 8192, 16, 4


@dataclass(frozen=True)
class Fixed:
    """Sizes of the programs, which have nothing to tune."""

    chunk: int = 128
    warps: int = 8
    stages: int = 2


GRADIENTS = ("dq", "dkv")


def cases() -> list[Case]:
    """Return the kernels in the middle of a sequence, plain and packed; run only by name, until measured."""
    if (mosaic_support.cannot_run() or "").startswith("needs jax"):
        return []
    kernels = ("outputs", *GRADIENTS, "key_sums", "query_sums")
    wide = [_case(kernel, 112, False) for kernel in ("outputs", *GRADIENTS)]
    return [_case(kernel, 64, packed) for kernel in kernels for packed in (False, True)] + wide


def _case(kernel: str, value_size: int, packed: bool) -> Case:
    from pallas_kernels.taylor_attention import mosaic, mosaic_kernel
    from pallas_kernels.taylor_attention.mosaic_plan import KEYS, QUERIES

    shape = jax.ShapeDtypeStruct
    plan = mosaic.make_plan((BATCH, LENGTH, HEADS, 16), value_size, LENGTH // BLOCKS, 1e-12, packed)
    keys, values = (shape((BATCH, LENGTH, HEADS, size), "bfloat16") for size in (16, value_size))
    known = {"q": keys, "k": keys, "v": values, "do": values, "y": values}
    known["rden"] = shape((BATCH, HEADS, LENGTH), "float32")
    known["e"] = shape((BATCH, HEADS * plan.parts, LENGTH), "float32")
    names = {
        "outputs": ("q", "k", "v"),
        "dq": ("q", "k", "v", "do", "y", "rden"),
        "dkv": ("q", "k", "v", "do", "rden", "e"),
        "key_sums": ("k", "v"),
        "query_sums": ("q", "do", "rden", "e"),
    }[kernel]
    rows = [shape((BATCH, LENGTH), "int32"), shape((BATCH,), "int32")] if packed else []
    side = QUERIES if kernel == "dkv" else KEYS
    states = [] if kernel.endswith("sums") else mosaic_kernel.state_shapes(plan, BLOCKS, side)

    def function(*arrays: Any) -> Any:
        count = len(names)
        inputs, packing, state = dict(zip(names, arrays, strict=False)), arrays[count:], ()
        if states:
            packing, state = packing[: len(rows)], packing[len(rows) :]
        match kernel:
            case "key_sums":
                return mosaic_kernel.key_sums(plan, inputs, packing)
            case "query_sums":
                return mosaic_kernel.query_sums(plan, inputs, packing, 1)
            case "outputs":
                return mosaic_kernel.outputs(plan, inputs, packing, state, return_state=packed)
            case "dq":
                return mosaic_kernel.query_gradients(plan, inputs, packing, state)
            case _:
                return mosaic_kernel.key_and_value_gradients(plan, inputs, packing, state)

    name, words = f"{kernel}_mosaic", f"K16 V{value_size} bfloat16" + " packed" * packed
    options: dict[str, Any] = {"backend": "mosaic"}
    arguments = (*(known[name] for name in names), *rows, *states)
    return Case("taylor_attention", name, words, Fixed(), function, arguments, on_request=True, **options)
