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


# Products and sums may be fused, which triton 3.10 no longer does by default. The PTX is that of CUDA 12.9:
# XLA's assembler may be older than triton's.
_COMPILER_OPTIONS = {"enable_fp_fusion": True, "ptx_version": 88}


def expect_backend(backend: str, other: str = "triton") -> None:
    """Check the argument, "pallas" or `other`, and that what it needs of this module is installed.

    Raises:
        ValueError: unknown backend, or one that the interpreter of Pallas cannot run.
        ImportError: a package is missing, or this release of jax has no Triton backend for Pallas.
    """
    expect(backend in ("pallas", other), "backend", backend, f"'pallas' or {other!r}")
    if backend == "triton":
        expect(not is_interpreted(), "backend", backend, "'pallas', the only one that `interpreted` runs")
        require()
    elif backend == "pallas" and (reason := cannot_launch(backend)):
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
        kernel: takes a pointer per operand, then one per output, then `constants` by name. The pointer of an
            output in `aliases` may be None: then the kernel writes through that of its operand.
        out_shape: shape and dtype of each output.
        constants: hashable; the kernel is compiled for them.
        grid, warps, stages, aliases, name: as for `launch.launch`.
    """
    import jax_triton

    aliases = dict(aliases or {})
    options = {
        "kernel": kernel,
        "grid": tuple(grid),
        "num_warps": warps,
        "num_stages": stages,
        # None queries the driver, which exists only on a machine with a GPU.
        "compute_capability": capability(),
        "name": name,
        **constants,
    }
    if not hasattr(jax_triton, "TensorDescriptor"):  # jax-triton 0.3, the last for Python 3.11
        results = jax_triton.triton_call(
            *operands, out_shape=list(out_shape), input_output_aliases=aliases, **options
        )
        return tuple(results)
    # Later releases write in place through references, and pass no second pointer for such an output.
    references = {output: jax.new_ref(operands[operand]) for operand, output in aliases.items()}
    pointers = [references[aliases[i]] if i in aliases else x for i, x in enumerate(operands)]
    parameters = kernel.arg_names[len(operands) :]
    absent = {parameters[output]: None for output in references}
    new = {i: x for i, x in enumerate(out_shape) if i not in references}
    results = jax_triton.triton_call(
        *pointers, out_type=new, backend_options=_COMPILER_OPTIONS, **options, **absent
    )
    return tuple(jax.freeze(references[i]) if i in references else results[i] for i in range(len(out_shape)))
