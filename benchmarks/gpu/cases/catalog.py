"""Every kernel on realistic shapes: one list for the lowering tests, `inspect` and the section `tune`."""

from benchmarks.gpu.cases import layers, mosaic, steps, taylor_attention
from benchmarks.gpu.cases.case import Case

OPS = {
    "taylor_attention": taylor_attention.cases,
    "taylor_step": steps.taylor_cases,
    "window_attention": layers.window_cases,
    "window_step": steps.window_cases,
    "conv_step": steps.conv_cases,
    "row_products": steps.product_cases,
    "gated_conv": layers.gate_cases,
    "rms_norm": layers.norm_cases,
    "softmax_loss": layers.loss_cases,
}
"""Folder of kernels -> its cases, with the variants of the tuning tables."""


def cases(match: str = "") -> list[Case]:
    """Return the cases whose name contains `match`, in a fixed order."""
    return [case for listed in OPS.values() for case in listed() if match in case.name]


def on_hopper(match: str = "") -> list[Case]:
    """Return the cases in Mosaic GPU; none if this jax is too old for them."""
    return [case for case in mosaic.cases() if match in case.name]
