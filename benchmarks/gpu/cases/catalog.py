"""Every kernel on realistic shapes: one list for the lowering tests, `inspect` and the section `tune`."""

import importlib

from benchmarks.gpu.cases.case import Case

OPS = (
    "taylor_attention",
    "taylor_step",
    "window_attention",
    "window_step",
    "conv_step",
    "row_products",
    "gated_conv",
    "rms_norm",
    "softmax_loss",
)
"""Folders of kernels; the module of each beside this one has `cases() -> list[Case]`."""


def cases(match: str = "") -> list[Case]:
    """Return the cases whose name contains `match`, in a fixed order."""
    return [case for op in OPS for case in _of(op) if match in case.name]


def on_hopper(match: str = "") -> list[Case]:
    """Return the cases in Mosaic GPU; none if this jax is too old for them."""
    return [case for case in _of("mosaic") if match in case.name]


def _of(module: str) -> list[Case]:
    return importlib.import_module(f"benchmarks.gpu.cases.{module}").cases()
