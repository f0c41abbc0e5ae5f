"""Choose the implementation of an op: a named one runs or raises, None picks the best that works.

"reference" is the definition that tests compare with; None never picks it. "xla" runs anywhere, and so does
"tiled", which is made for CPUs. "pallas", "mosaic" and "triton" are the fused GPU kernels of
`pallas_kernels`; "cudnn" is NVIDIA's attention.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.core import Tracer

import pallas_kernels
from based_jax import compat
from based_jax.validate import expect, expect_choice

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that JAX lowers for, by its names."""

ANY_GPU = "NVIDIA A10"
"""GPU assumed if a program is lowered on a machine without one: it has the least shared memory of those that
run the kernels, and no Hopper-only features."""

KERNELS = ("pallas", "mosaic", "triton", "cudnn")


class Declaration(NamedTuple):
    """An op's own implementations; see `registration.implemented_by`."""

    names: tuple[str, ...]
    """best first"""
    supports: Callable[..., str | None] | None
    is_slow: Callable[..., bool] | None
    fastest: Callable[..., str] | None
    on_cpu: Callable[..., str] | None


DECLARED: dict[str, Declaration] = {}
"""by op"""

Refusals = str | Mapping[str, str | None] | None
"""reason why a call's other arguments exclude all kernels, or reasons by kernel, the preferred first"""


_PLATFORM: Any = jax.make_user_context(None)
"""part of the key of `jit`'s cache of traced programs"""


@contextlib.contextmanager
def on_platform(name: str) -> Generator[None]:
    """Declare the platform of the arrays while tracing: tracers do not know it."""
    with _PLATFORM(name):
        yield


def declared_platform() -> str | None:
    """Return the platform of `on_platform`, else of the mesh of `jax.set_mesh`, else None."""
    return _PLATFORM.value or _named(compat.platform_of_mesh())


@contextlib.contextmanager
def lowering_for(*platforms: str, device_kind: str | None = None) -> Generator[None]:
    """Trace ops for these platforms instead of this process's; also training steps and exported kernels.

    Use it around the tracing. Programs that `jit` has traced outside are not reused inside. Call only
    `jax.jit(f).trace(...)` and `jax.export` inside: other calls would run programs for another platform here.

    Args:
        platforms: "cpu", "cuda", "rocm" or "tpu". For several, ops pick what runs on all of them.
        device_kind: with "cuda" alone, the GPU to choose kernels and block sizes for, such as "NVIDIA H100";
            None for this process's GPU or, without one, any that the kernels support.

    Raises:
        ValueError: no platform or an unknown one; a `device_kind` for anything but "cuda".
    """
    expect(bool(platforms), "platforms", platforms, f"one or more of {', '.join(PLATFORMS)}")
    for platform in platforms:
        expect_choice("platforms", platform, PLATFORMS)
    is_gpu = platforms == ("cuda",)
    expect(is_gpu or device_kind is None, "device_kind", device_kind, "None unless platforms = ('cuda',)")
    with _tracing_for("gpu" if is_gpu else platforms[0] if len(platforms) == 1 else "any", device_kind):
        yield


@contextlib.contextmanager
def _tracing_for(platform: str, device_kind: str | None = None) -> Generator[None]:
    """Declare the platform; an absent GPU needs a name."""
    absent = platform == "gpu" and (device_kind is not None or platform(()) != "gpu")
    gpu = pallas_kernels.lowering_for(device_kind or ANY_GPU) if absent else contextlib.nullcontext()
    with on_platform(platform), gpu:
        yield


def is_for_tests() -> bool:
    """Return whether the kernels are interpreted, or lowered for an absent GPU."""
    return pallas_kernels.is_interpreted() or pallas_kernels.is_lowered_for_gpu()


def implementations(op: str) -> tuple[str, ...]:
    """Return the names that `op` itself accepts as `implementation`, best first.

    Raises:
        ValueError: unknown op.
    """
    expect_choice("op", op, tuple(DECLARED))
    return DECLARED[op].names


def expect_implementation(op: str, name: str, available: Sequence[str]) -> None:
    """Check a caller's `implementation`."""
    expected = f"None or one of {', '.join(map(repr, available))} for {op}"
    expect(name in available, "implementation", name, expected)


def implementation_for(
    op: str, *arrays: Any, implementation: str | None = None, unsupported: Refusals = None
) -> str:
    """Choose among the op's own implementations; see `registration.implementation_for`.

    None picks "cudnn", or "pallas", or "mosaic" or "xla" where they were measured to be faster. If jax has no
    Triton backend of Pallas, it picks "triton" if jax-triton is installed, then "mosaic". All are
    differentiable.
    With `unsupported` by kernel it picks the first of those that runs.
    """
    available = implementations(op)
    if implementation is not None:
        expect_implementation(op, implementation, available)
        if implementation in KERNELS:
            refusal = unsupported.get(implementation) if isinstance(unsupported, Mapping) else unsupported
            reason = refusal or _cannot_run(op, implementation, arrays)
            if reason:
                raise ValueError(f"implementation = {implementation!r}: {reason}")
        return implementation
    on_cpu = DECLARED[op].on_cpu
    if (kernel := _kernel_for(op, arrays, unsupported)) is not None:
        return kernel
    return on_cpu(*arrays) if arrays and on_cpu is not None and platform(arrays) == "cpu" else "xla"


def _kernel_for(op: str, arrays: Sequence[Any], unsupported: Refusals) -> str | None:
    """Return the kernel that None picks, if any; arguments as for `implementation_for`."""
    available, declared = implementations(op), DECLARED[op]
    if isinstance(unsupported, Mapping):
        if declared.is_slow is not None and declared.is_slow(*arrays):
            return None
        willing = [kernel for kernel, refusal in unsupported.items() if refusal is None]
        return next((kernel for kernel in willing if not _cannot_run(op, kernel, arrays)), None)
    if unsupported or not set(available) & set(KERNELS):
        return None
    kernel = "cudnn" if "cudnn" in available else _portable_kernel(arrays)
    if kernel not in available or _cannot_run(op, kernel, arrays):
        return "mosaic" if "mosaic" in available and not _cannot_run(op, "mosaic", arrays) else None
    if arrays and declared.is_slow is not None and declared.is_slow(*arrays):
        return None
    return declared.fastest(*arrays) if arrays and declared.fastest and kernel == "pallas" else kernel


def _cannot_run(op: str, kernel: str, arrays: Sequence[Any]) -> str | None:
    """Return why `kernel` cannot compute `op` of these arrays here, or None."""
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
    supports = DECLARED[op].supports
    return supports(kernel, *arrays) if arrays and supports is not None else pallas_kernels.cannot_run()


def _portable_kernel(arrays: Sequence[Any]) -> str:
    """Return the kernels for all GPUs: "pallas", or "triton" if this jax cannot compile the former."""
    return "triton" if platform(arrays) == "gpu" and pallas_kernels.cannot_launch("pallas") else "pallas"


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def platform(arrays: Sequence[Any]) -> str:
    """Return the platform of the call: that of the arrays' device if they have one, else the default."""
    if pallas_kernels.is_lowered_for_gpu():
        return "gpu"
    for array in arrays:
        if is_placed(array):
            return _named(next(iter(array.devices())).platform)
    if (known := declared_platform()) is not None:
        return known
    device: Any = getattr(jax.config, "jax_default_device", None)
    return jax.default_backend() if device is None else getattr(device, "platform", str(device))


def _named(platform: Any) -> Any:
    """Return a device's platform by its name in `jax.default_backend`."""
    return "gpu" if platform in ("cuda", "rocm") else platform


def is_placed(array: Any) -> bool:
    """Return whether an array knows its devices."""
    return isinstance(array, jax.Array) and not isinstance(array, Tracer)
