"""Measure the resources that the jax-triton twins need on a GPU, as `inspect` does for the Pallas kernels.

jax-triton compiles a kernel to PTX when it is lowered, so the lowered program holds what will run; only the
assembler has to run. Needs `triton`, `jax_triton`, jax's CUDA plugin and an assembler (extra `inspect`).
"""

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from benchmarks.gpu.static.resources import Resources, assemble, custom_calls
from pallas_kernels import offline


class Compiled(NamedTuple):
    """One kernel of a lowered program."""

    name: str
    ptx: str
    warps: int
    shared: int
    """bytes of shared memory"""


def report(function: Callable[..., Any], *arguments: Any, device_kind: str = offline.H200) -> list[Resources]:
    """Lower `function` for a GPU and assemble the kernels that it launches through jax-triton.

    Args:
        arguments: arrays or `jax.ShapeDtypeStruct`s.
        device_kind: the GPU, as in `offline.lowering_for`.

    Raises:
        ImportError: a wheel is missing.
        LookupError: `function` launches no kernel through jax-triton.
    """
    found = kernels(offline.lower(function, *arguments, device_kind=device_kind))
    # XLA's assembler comes first: a GPU's process uses it for these kernels too.
    once = functools.cache(assemble)  # a pass may launch one kernel several times
    return [once(k.name, k.ptx, k.warps, k.shared, "xla") for k in found]


def kernels(lowered: jax.stages.Lowered) -> list[Compiled]:
    """Return the kernels of a program from `offline.lower` that are launched through jax-triton, in order."""
    return custom_calls(lowered, "triton_kernel_call", _decode)


def _decode(operation: Any) -> Compiled:
    """Decode jaxlib's TritonAnyKernelCall: field 1 is the call, its field 1 the kernel."""
    from jaxlib.mlir import ir

    attributes = operation.attributes
    if "mhlo.backend_config" in attributes:  # of the call that jax-triton 0.4 makes
        config = attributes["mhlo.backend_config"]["opaque"]
    else:
        config = attributes["backend_config"]
    call = dict(_fields(zlib.decompress(ir.StringAttr(config).value_bytes)))[1]
    kernel = dict(_fields(dict(_fields(call))[1]))
    # Fields that are 0 are omitted.
    return Compiled(kernel[1].decode(), kernel[4].decode(), warps=kernel[2], shared=kernel.get(3, 0))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of a protocol-buffer message: integers, or bytes that may be messages."""
    at = 0

    def integer() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = integer()
        value: Any = integer()
        if key & 7 == 2:  # the integer is a length
            value, at = message[at : at + value], at + value
        elif key & 7 != 0:
            raise ValueError(f"wire type {key & 7} in the description of a kernel")
        yield key >> 3, value
