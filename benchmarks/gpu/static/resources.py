"""Compile kernels for an H200 without one, and read the registers, spills and shared memory that they need.

From jax 0.11 on nothing in Python compiles a single kernel with XLA's Triton. So the program is compiled as
on a GPU, and a script that keeps a copy of its input replaces `ptxas`, the assembler. Mosaic GPU writes its
PTX to files if the environment requests that. Needs the wheels of the extra `inspect`, no GPU and no driver;
times nothing. A missing wheel is an ImportError, a compiler's refusal a RuntimeError.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from benchmarks.gpu.static.topology import INSTALL, PLUGINS, compile_program, lower_program, placed, uncached
from benchmarks.machine import versions
from pallas_kernels import devices

ARCHITECTURE = "sm_90a"

MOSAIC_WARPS = 8

_ASSEMBLER = """#!/bin/sh
case "$1" in --*) ;; *) cp "$1" {folder}/$$.ptx ;; esac
exec {ptxas} "$@"
"""
"""XLA passes the source first, and queries the version before."""

_LAUNCH = re.compile(r" (\S+) grid: .* shared_memory: (\d+) bytes")


@dataclass(frozen=True)
class Resources:
    """Resources of one program (thread block) of a compiled kernel."""

    kernel: str
    registers: int
    """per thread; at most 255"""
    stack: int
    """bytes of local memory per thread; nonzero if there are too few registers"""
    spill_stores: int
    """bytes per thread, each instruction counted once"""
    spill_loads: int
    shared: int
    """bytes of shared memory"""
    blocks_per_sm: int
    """programs that fit on one multiprocessor at a time"""
    wgmma: int
    """tensor-core instructions of a warp group (four warps)"""
    mma: int
    """older instructions of single warps, slower on this GPU"""


def of_portable(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> list[Resources]:
    """Compile `function` and assemble its kernels of Pallas' Triton backend.

    Raises:
        LookupError: `function` launches no such kernel, or the compiler's files are not as expected.
    """
    on_gpu = placed(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_assembler(folder, assembler())
        with uncached():
            compile_program(function, *on_gpu, xla_gpu_cuda_data_dir=name, xla_dump_to=f"{name}/dump")
        sources, shared = _sources(folder), _shared(folder / "dump")
    # The program may also hold kernels that XLA made itself.
    found = kernels(lower_program(function, *on_gpu))
    if missing := found.keys() - (sources.keys() & shared.keys()):
        raise LookupError(f"jax {jax.__version__}: no {', '.join(missing)} among what XLA assembled")
    return [assemble(name, sources[name], warps, shared[name]) for name, warps in found.items()]


def of_mosaic(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> list[Resources]:
    """Compile `function` and assemble the kernels that it launches through Mosaic GPU.

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
        return list(dict.fromkeys(map(_assembled_mosaic, found)))  # a pass may launch one kernel twice


def _assembled_mosaic(path: Path) -> Resources:
    log = path.with_suffix(".mlir-passes.log").read_text()
    shared = re.search(r"dynamic_shared_memory_size %c(\d+)_i32", log)
    if shared is None:
        raise LookupError(f"{path.stem}: no size of the shared memory in what the compiler logged")
    # The file's name ends with the number of the kernel in this process.
    name = re.sub(r"_\d+$", "", path.stem)
    return assemble(name, path.read_text(), MOSAIC_WARPS, int(shared[1]))


def _write_assembler(folder: Path, ptxas: str) -> Path:
    """Write a `ptxas` that keeps its input in `folder`, where XLA looks for one in a CUDA installation."""
    tool = folder / "bin" / "ptxas"
    tool.parent.mkdir()
    tool.write_text(_ASSEMBLER.format(folder=shlex.quote(str(folder)), ptxas=shlex.quote(ptxas)))
    tool.chmod(0o755)
    return tool


def _sources(folder: Path) -> dict[str, str]:
    """Return name of a kernel -> PTX of its module; XLA also assembles a module with only constants."""
    texts = [path.read_text() for path in folder.glob("*.ptx")]
    return {name: text for text in texts for name in re.findall(r"\.entry (\w+)\(", text)}


def _shared(dump: Path) -> dict[str, int]:
    """Return name of a kernel -> bytes of dynamic shared memory with which the program launches it."""
    texts = [path.read_text() for path in dump.glob("*thunk_sequence.txt")]
    return {name: int(size) for text in texts for name, size in _LAUNCH.findall(text)}


def kernels(lowered: jax.stages.Lowered) -> dict[str, int]:
    """Return name -> warps of the kernels of Pallas' Triton backend in a program from `offline.lower`.

    Raises:
        LookupError: there are none.
    """
    from jaxlib.mlir import ir

    target, found = "__gpu$xla.gpu.triton", {}

    def visit(operation: Any) -> Any:
        attributes = operation.attributes
        is_call = operation.name == "stablehlo.custom_call"
        if is_call and ir.StringAttr(attributes["call_target_name"]).value.startswith(target):
            config = ir.DictAttr(attributes["mhlo.backend_config"])
            # The `name` of the launch: the IR itself has the name of the body.
            location = re.search(r'([^"/]+)/pallas_call"', str(operation.location))
            name = location[1] if location else ir.StringAttr(config["name"]).value
            found[name] = ir.IntegerAttr(config["num_warps"]).value
        return ir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    module.operation.walk(visit)
    if not found:
        raise LookupError(f"no {target} in the lowered program: jax {jax.__version__} may name it otherwise")
    return found


def toolchain() -> dict[str, str]:
    """Return names and versions of the tools that determine a report's numbers; the last is the assembler."""
    packages = ["jax", "jaxlib", *(name.replace("_", "-") for name in PLUGINS), "triton", "nvidia-cuda-nvcc"]
    installed = zip(packages, versions(packages).values(), strict=True)
    found = {name: version for name, version in installed if version is not None}
    return {"target": ARCHITECTURE, "compiler": "XLA", **found}


def assemble(name: str, ptx: str, warps: int, shared: int) -> Resources:
    """Assemble PTX, and read what the assembler reports.

    Args:
        shared: bytes of dynamic shared memory, which PTX does not contain.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        words = [assembler(), "-v", f"-arch={ARCHITECTURE}", source, "-o", Path(folder, "kernel.cubin")]
        done = subprocess.run(words, capture_output=True, text=True)
    report = done.stdout + done.stderr
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]}: {report.strip().splitlines()[0]}")
    registers = _number(r"Used (\d+) registers", report)
    if not registers:
        raise RuntimeError(f"ptxas did not report how many registers {name} uses")
    kinds = ("stack frame", "spill stores", "spill loads", "smem")
    stack, stores, loads, own_shared = (_number(rf"(\d+) bytes {kind}", report) for kind in kinds)
    shared += own_shared
    wgmma, mma = (ptx.count(name) for name in ("wgmma.mma_async", "mma.sync"))
    programs = blocks_per_sm(registers, warps, shared)
    return Resources(name, registers, stack, stores, loads, shared, programs, wgmma, mma)


def blocks_per_sm(registers: int, warps: int, shared: int) -> int:
    """Return how many programs one multiprocessor of an H200 holds at a time.

    Args:
        registers: per thread; allocated to warps in units of 256 from four files of 16384.
        shared: bytes, without the 1024 per program that the system takes.
    """
    have = next(x for x in devices.FAMILIES if x.capability == "9.0")
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = 4 * (16384 // per_warp) // warps
    by_shared = (have.shared + 1024) // (-(-(shared + 1024) // 128) * 128)
    return min(by_registers, by_shared, have.warps // warps, have.programs)


def assembler() -> str:
    """Return the path of `ptxas`: that of NVIDIA's packages, which XLA uses, or the one on PATH."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if found := sorted([*Path(folder).glob("*/bin/ptxas"), *Path(folder).glob("*/*/bin/ptxas")]):
            return str(found[0])
    if on_path := shutil.which("ptxas"):
        return on_path
    raise ImportError(f"no ptxas ({INSTALL})")


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
