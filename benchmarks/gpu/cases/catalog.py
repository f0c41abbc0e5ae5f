"""Every kernel on realistic shapes: one list for the lowering tests, `inspect` and the section `tune`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

import pallas_kernels
from benchmarks.gpu.cases import layers, steps, taylor_attention
from benchmarks.gpu.cases.case import Case
from pallas_kernels.taylor_attention import mosaic_support

OPS = {
    "taylor_attention": taylor_attention.cases,
    "taylor_step": steps.taylor_cases,
    "window_attention": layers.window_cases,
    "window_step": steps.window_cases,
    "conv_step": steps.conv_cases,
    "row_products": steps.product_cases,
    "gated_conv": layers.gate_cases,
    "rms_norm": layers.norm_cases,
    "selective_scan": layers.scan_cases,
    "linear_recurrence": layers.recurrence_cases,
    "softmax_loss": layers.loss_cases,
}
"""Folder of kernels -> its cases, with the variants of the tuning tables."""

BATCH, LENGTH, HEADS, BLOCK = 4, 8192, 16, 2048
"""Sizes of the Mosaic cases."""


def cases(match: str = "") -> list[Case]:
    """Return the cases whose name contains `match`, in a fixed order."""
    return [case for listed in OPS.values() for case in listed() if match in case.name]


def at_highest_precision() -> list[Case]:
    """Return kernels whose float32 operands are split in three, which need the most shared memory.

    Not part of `cases`: JAX's default precision already shows all that can be tuned.
    """
    return [*taylor_attention.at_highest_precision(), *layers.recurrence_cases("highest")]


@dataclass(frozen=True)
class Fixed:
    """Sizes of the Mosaic programs, which have nothing to tune."""

    chunk: int = 128
    warps: int = 8
    stages: int = 2


def on_hopper(match: str = "") -> list[Case]:
    """Return the cases in Mosaic GPU, with gradients; none if this jax is too old for them."""
    if (mosaic_support.cannot_run() or "").startswith("needs jax"):
        return []
    every = [_mosaic(64, packed=False), _mosaic(64, packed=True), _mosaic(112, packed=False)]
    return [case for case in every if match in case.name]


def _mosaic(value_size: int, packed: bool) -> Case:
    shape = jax.ShapeDtypeStruct
    arrays = [shape((BATCH, LENGTH, HEADS, size), "bfloat16") for size in (16, 16, value_size)]
    arrays += [shape((BATCH, LENGTH), "int32"), shape((BATCH,), "int32")] * packed

    def function(q: Any, k: Any, v: Any, *packing: Any) -> Any:
        named = dict(zip(("starts", "counts"), packing, strict=False))
        attend = partial(
            pallas_kernels.taylor_attention, block=BLOCK, return_state=packed, backend="mosaic", **named
        )
        results, pull_back = jax.vjp(attend, q, k, v)
        return results, pull_back(results)

    words = f"K16 V{value_size} bfloat16" + " packed" * packed
    given = "mosaic", words, Fixed(), function, tuple(arrays)
    return Case("taylor_attention", *given, backend="mosaic")
