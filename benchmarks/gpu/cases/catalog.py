"""Every kernel on realistic shapes: one list for the lowering tests, `inspect` and `tune`.

The module of an op beside this one has

    cases() -> list[Case]
    candidates(case) -> list[Case]   the variants worth measuring on the case's shape
    facts(case) -> dict              facts that select the shape's row of the tuning table

and may have

    CARRIED: dict[int, int]          argument -> the result that replaces it in the next call, in place
"""

import importlib
from types import ModuleType

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
"""Folders of kernels."""


def cases(match: str = "") -> list[Case]:
    """Return the cases whose name contains `match`, in a fixed order."""
    return [case for op in OPS for case in _module(op).cases() if match in case.name]


def on_hopper(match: str = "") -> list[Case]:
    """Return the cases in Mosaic GPU; none if this jax is too old for them."""
    from benchmarks.gpu.cases import mosaic as mosaic_cases

    return [case for case in mosaic_cases.cases() if match in case.name]


def candidates(case: Case) -> list[Case]:
    """Return the case's kernel and shape with each variant worth measuring; the case itself first."""
    return [case, *(other for other in _module(case.op).candidates(case) if other.variant != case.variant)]


def facts(case: Case) -> dict[str, int | str]:
    """Return the facts that select this shape's row of the tuning table."""
    return _module(case.op).facts(case)


def carried(case: Case) -> dict[int, int]:
    """Return argument -> result that replaces it in the next call: a state that is updated in place."""
    return dict(getattr(_module(case.op), "CARRIED", {}))


def _module(op: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.gpu.cases.{op}")
