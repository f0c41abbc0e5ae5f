"""The platform that ops are traced for: a declared one, that of an array, of a mesh, or of this process."""

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

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

_PLATFORM: Any = jax.make_user_context(None)
"""part of the key of `jit`'s cache of traced programs"""


@contextlib.contextmanager
def on_platform(name: str | None) -> Generator[None]:
    """Declare the platform of the arrays while tracing: tracers do not know it. None declares none."""
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
    Where the GPUs are absent, jax 0.12 refuses a mesh with the axis `context`.

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
    with on_platform(None), pallas_kernels.lowering_for(None):  # not those of an outer block
        absent = is_gpu and (device_kind is not None or platform_of(()) != "gpu")
        gpu = pallas_kernels.lowering_for(device_kind or ANY_GPU) if absent else contextlib.nullcontext()
        with on_platform("gpu" if is_gpu else platforms[0] if len(platforms) == 1 else "any"), gpu:
            yield


def is_for_tests() -> bool:
    """Return whether the kernels are interpreted, or lowered for an absent GPU."""
    return pallas_kernels.is_interpreted() or pallas_kernels.is_lowered_for_gpu()


def platform_of(arrays: Sequence[Any]) -> str:
    """Return the platform of the call: a declared one, that of the arrays' device, or the default."""
    if pallas_kernels.is_lowered_for_gpu():
        return "gpu"
    if _PLATFORM.value is not None:  # an array that a traced function closes over may be elsewhere
        return _PLATFORM.value
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
