"""Which implementation of an op runs: a name means that one or an error, None means the best that works.

"reference" is the specification and the arbiter in tests; it is never picked by itself. "xla" runs anywhere.
"pallas", "mosaic" and "triton" are the fused GPU kernels of `pallas_kernels`; "cudnn" is NVIDIA's attention.
"""

import contextlib
import contextvars
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.core import Tracer

import pallas_kernels
from based_jax.ops import cudnn_attention
from based_jax.validate import expect, expect_choice

# `implementation=None` picks "pallas" where that runs, and "mosaic" where it was measured to be faster. A jax
# without Pallas' Triton backend leaves "triton", then "mosaic".
_IMPLEMENTATIONS = {
    "conv_attention": ("xla", "reference"),
    "delta_rule": ("xla", "reference"),
    "generalized_delta_rule": ("xla", "reference"),
    "diagonal_scan": ("xla", "reference"),
    "diagonal_ssm": ("xla", "reference"),
    "linear_attention": ("xla", "reference"),
    "linear_recurrence": ("xla", "reference"),
    "long_conv": ("xla", "reference"),
    "masked_low_rank": ("xla", "reference"),
    "taylor_attention": ("pallas", "mosaic", "triton", "xla", "reference"),
    "taylor_step": ("pallas", "triton", "xla", "reference"),
    "selective_scan": ("xla", "reference"),
    "softmax_attention": ("cudnn", "xla", "reference"),
    "window_step": ("pallas", "triton", "xla", "reference"),
    "wkv": ("xla", "reference"),
}

_SUPPORTS = {
    "softmax_attention": cudnn_attention.supports,
    "taylor_attention": pallas_kernels.supports_taylor_attention,
    "taylor_step": pallas_kernels.supports_taylor_step,
    "window_step": pallas_kernels.supports_window_step,
}
"""Op -> why its kernels cannot take these arrays (shapes, dtypes) on this GPU, or None if they can."""

_IS_SLOW = {"taylor_attention": pallas_kernels.is_slow_taylor_attention}
"""Op -> whether its kernels take these arrays but should run only on request."""

_FASTEST = {"taylor_attention": pallas_kernels.fastest_taylor_attention}
"""Op -> which of its kernels was measured to be the fastest on these arrays."""

KERNELS = ("pallas", "mosaic", "triton", "cudnn")

_PLATFORM: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform", default=None)


@contextlib.contextmanager
def on_platform(name: str) -> Iterator[None]:
    """While tracing: where the arrays are, which tracers do not say."""
    token = _PLATFORM.set(name)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def is_for_tests() -> bool:
    """Whether the kernels are interpreted, or lowered for a GPU that is not there."""
    return pallas_kernels.is_interpreted() or pallas_kernels.is_lowered_for_gpu()


def implementations(op: str) -> tuple[str, ...]:
    """The names that `op` accepts as `implementation`, best first.

    Raises:
        ValueError: unknown op.
    """
    expect_choice("op", op, tuple(_IMPLEMENTATIONS))
    return _IMPLEMENTATIONS[op]


def implementation_for(
    op: str, *arrays: Any, implementation: str | None = None, unsupported: str | None = None
) -> str:
    """The implementation that runs for these arguments; with None, the one that would be picked.

    None picks "pallas", or "mosaic" where it was measured to be faster. A jax without the Triton backend of
    Pallas leaves "triton", where jax-triton is installed, then "mosaic". All are differentiable.

    Args:
        op: name of a function of `based_jax.ops` that takes `implementation`.
        arrays: its first array arguments (q, k, v): their shapes, dtypes and devices decide.
        implementation: the caller's request.
        unsupported: why the call's other arguments keep the kernels from running it, if they do.

    Raises:
        ValueError: unknown op, an implementation that this op does not have, or a kernel that cannot run
            this call.
    """
    available = implementations(op)
    if implementation is not None:
        expect(
            implementation in available,
            "implementation",
            implementation,
            f"None or one of {', '.join(map(repr, available))} for {op}",
        )
        if implementation in KERNELS:
            reason = unsupported or _cannot_run(op, implementation, arrays)
            if reason:
                raise ValueError(f"implementation = {implementation!r}: {reason}")
        return implementation
    if "cudnn" in available:
        on_request = arrays and cudnn_attention.is_slow(*arrays)
        return "xla" if unsupported or on_request or _cannot_run(op, "cudnn", arrays) else "cudnn"
    if "pallas" not in available or unsupported:
        return "xla"
    kernel = _portable_kernel(arrays)
    if _cannot_run(op, kernel, arrays):
        has_mosaic = "mosaic" in available and kernel == "triton"  # else its gradient would be refused, too
        return "mosaic" if has_mosaic and not _cannot_run(op, "mosaic", arrays) else "xla"
    if arrays and op in _IS_SLOW and _IS_SLOW[op](*arrays):
        return "xla"
    return _FASTEST[op](*arrays) if arrays and op in _FASTEST and kernel == "pallas" else kernel


def _cannot_run(op: str, kernel: str, arrays: Sequence[Any]) -> str | None:
    """Why `kernel` cannot compute `op` of these arrays here, or None."""
    if kernel == "triton" and (missing := [n for n in ("triton", "jax_triton") if not _installed(n)]):
        return f"needs {' and '.join(missing)}; install based-jax[triton]"
    where = platform(arrays)
    has_interpreter = kernel not in ("triton", "cudnn")
    if where != "gpu" and not (pallas_kernels.is_interpreted() and has_interpreter):
        return (
            f"runs on GPUs, and these arrays are on {where!r}; expected None, 'xla' or 'reference'"
            + " (tests may use `with pallas_kernels.interpreted():`)" * has_interpreter
        )
    if kernel in ("pallas", "triton") and (reason := pallas_kernels.cannot_launch(kernel)):
        return reason
    reason = _SUPPORTS[op](*arrays) if arrays or kernel == "cudnn" else pallas_kernels.cannot_run()
    if reason is None and kernel == "mosaic":
        return pallas_kernels.supports_mosaic_taylor_attention(*arrays)
    return reason


def _portable_kernel(arrays: Sequence[Any]) -> str:
    """The kernels for all GPUs: Pallas', or their twins where this jax cannot compile those."""
    return "triton" if platform(arrays) == "gpu" and pallas_kernels.cannot_launch("pallas") else "pallas"


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def platform(arrays: Sequence[Any]) -> str:
    """Where the call will run: the arrays' device if they have one, else the default one."""
    if pallas_kernels.is_lowered_for_gpu():
        return "gpu"
    for array in arrays:
        if isinstance(array, jax.Array) and not isinstance(array, Tracer):
            kind = next(iter(array.devices())).platform
            return "gpu" if kind in ("cuda", "rocm") else kind
    if (known := _PLATFORM.get()) is not None:
        return known
    device: Any = getattr(jax.config, "jax_default_device", None)
    return jax.default_backend() if device is None else getattr(device, "platform", str(device))
