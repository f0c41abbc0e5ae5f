"""Launch kernels by jax-triton, the alternative that JAX recommends to Pallas' Triton backend.

`triton` and `jax_triton` are optional and slow to import, so both are imported at the first launch.
"""

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax

from pallas_kernels import launch as portable
from pallas_kernels.checks import expect
from pallas_kernels.launch import is_interpreted
from pallas_kernels.offline import capability

PACKAGES = ("triton", "jax_triton")

INSTALL = "pip install 'based-jax[triton]'"


def expect_backend(backend: str) -> None:
    """Check the argument, and that its requirements are installed.

    Raises:
        ValueError: unknown backend, or one that the interpreter of Pallas cannot run.
        ImportError: a package is missing, or this release of jax has no Triton backend for Pallas.
    """
    expect(backend in ("pallas", "triton"), "backend", backend, "'pallas' or 'triton'")
    if backend == "triton":
        expect(not is_interpreted(), "backend", backend, "'pallas', the only one that `interpreted` runs")
        require()
    elif reason := cannot_launch(backend):
        raise ImportError(f"backend = 'pallas': {reason}")


def cannot_launch(backend: str) -> str | None:
    """Return why no kernel of "pallas" (interpreted: never) or "triton" can be launched here, or None."""
    if backend == "pallas" and is_interpreted():
        return None
    try:
        portable.require() if backend == "pallas" else require()
    except ImportError as error:
        return str(error)
    return None


def require() -> None:
    """Import the packages, or raise ImportError: one is missing, or jax has no GPU plugin."""
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except (ImportError, AttributeError) as error:  # AttributeError: made for another jax
            raise ImportError(f"backend = 'triton' needs {package} ({INSTALL}): {error}") from error


def kernels(module: str) -> ModuleType:
    """Import a module of `triton.jit` functions from this package; errors are those of `require`."""
    require()
    return importlib.import_module(f"pallas_kernels.{module}")


def launch(
    kernel: Any,
    *operands: jax.Array,
    grid: Sequence[int],
    out_shape: Sequence[Any],
    warps: int,
    stages: int = 1,
    aliases: Mapping[int, int] | None = None,
    name: str,
    **constants: Any,
) -> tuple[jax.Array, ...]:
    """Run a `triton.jit` function once per grid point.

    Args:
        kernel: takes a pointer per operand, then one per output, then `constants` by name.
        out_shape: shape and dtype of each output.
        constants: hashable; the kernel is compiled for them. None for an absent pointer.
        grid, warps, stages, aliases, name: as for `launch.launch`.
    """
    import jax_triton

    return tuple(
        jax_triton.triton_call(
            *operands,
            kernel=kernel,
            out_shape=list(out_shape),
            grid=tuple(grid),
            num_warps=warps,
            num_stages=stages,
            input_output_aliases=dict(aliases or {}),
            # None queries the driver, which exists only on a machine with a GPU.
            compute_capability=capability(),
            name=name,
            **constants,
        )
    )
