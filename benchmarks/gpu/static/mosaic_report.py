"""Measure the resources that Mosaic GPU kernels need on an H200, as `inspect` does for the portable ones.

Mosaic GPU makes PTX when XLA compiles the program, and writes it to files if the environment requests that.
Needs jax's CUDA plugin and an assembler (extra `inspect`).
"""

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from benchmarks.gpu.static.resources import Resources, assemble
from benchmarks.gpu.static.topology import compile_program, placed, uncached

WARPS = 8


def report(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> list[Resources]:
    """Compile `function` for an H200 and assemble the kernels that it launches through Mosaic GPU.

    Raises:
        LookupError: `function` launches no such kernel.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = dict.fromkeys(("MOSAIC_GPU_DUMP_PTX", "MOSAIC_GPU_DUMP_MLIR_PASSES"), "1")
        with mock.patch.dict(os.environ, wanted, MOSAIC_GPU_DUMP_TO=folder), uncached():
            compile_program(function, *placed(arguments))
        found = sorted(Path(folder).glob("*.ptx"))
        if not found:
            raise LookupError("no PTX of Mosaic GPU was written while the program was compiled")
        return [_assemble(path) for path in found]


def _assemble(path: Path) -> Resources:
    log = path.with_suffix(".mlir-passes.log").read_text()
    shared = re.search(r"dynamic_shared_memory_size %c(\d+)_i32", log)
    if shared is None:
        raise LookupError(f"{path.stem}: no size of the shared memory in what the compiler logged")
    # The file's name ends with the number of the kernel in this process.
    name = re.sub(r"_\d+$", "", path.stem)
    return assemble(name, path.read_text(), WARPS, int(shared[1]), "triton")
