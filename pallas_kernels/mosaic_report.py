"""What Mosaic GPU kernels take of an H200: as `inspect` says it of the portable kernels, without a GPU.

Mosaic GPU makes PTX when XLA compiles the program, and writes it to files where the environment asks for
that. Needs jax's CUDA plugin and an assembler (extra `inspect`).
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels.compile_offline import Resources, assemble
from pallas_kernels.topology import compile_program, topology, uncached

WARPS = 8
STAGES = 2


def report(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> list[Resources]:
    """Compile `function` for an H200 and assemble the kernels that it launches through Mosaic GPU.

    Raises:
        ImportError: a wheel is missing.
        LookupError: `function` launches no such kernel.
    """
    mesh = Mesh(np.array(topology()), ("device",))
    whole = NamedSharding(mesh, PartitionSpec())
    placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole) for x in arguments]
    with tempfile.TemporaryDirectory() as folder:
        with _written_to(folder), uncached():
            compile_program(function, *placed)
        found = sorted(Path(folder).glob("*.ptx"))
        if not found:
            raise LookupError("no PTX of Mosaic GPU was written while the program was compiled")
        return [_assemble(path) for path in found]


def _assemble(path: Path) -> Resources:
    log = path.with_suffix(".mlir-passes.log").read_text()
    shared = re.search(r"dynamic_shared_memory_size %c(\d+)_i32", log)
    if shared is None:
        raise LookupError(f"{path.stem}: no size of the shared memory in what the compiler logged")
    # The file ends with the number of the kernel in this process.
    name = re.sub(r"_\d+$", "", path.stem)
    return assemble(name, path.read_text(), WARPS, STAGES, int(shared[1]), "triton")


@contextlib.contextmanager
def _written_to(folder: str) -> Iterator[None]:
    """Compiling inside writes what Mosaic GPU makes."""
    wanted = {"MOSAIC_GPU_DUMP_TO": folder, "MOSAIC_GPU_DUMP_PTX": "1", "MOSAIC_GPU_DUMP_MLIR_PASSES": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
