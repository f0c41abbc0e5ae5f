"""Assemble kernels on a machine without a GPU, and read the resources that the assembler reports.

Needs the wheels of the extra `inspect`, no GPU and no driver; times nothing. A missing wheel is an
ImportError, a compiler's refusal a RuntimeError.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax

from benchmarks.gpu.static.topology import INSTALL, PLUGINS
from pallas_kernels import devices

ARCHITECTURE = "sm_90a"

Compiler = Literal["xla", "triton"]

Found = TypeVar("Found")


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


def custom_calls(lowered: jax.stages.Lowered, target: str, read: Callable[[Any], Found]) -> list[Found]:
    """Apply `read` to each call whose target begins with `target` in a lowered program, in order.

    Raises:
        LookupError: there are none.
    """
    from jaxlib.mlir import ir

    found: list[Found] = []

    def visit(operation: Any) -> Any:
        is_call = operation.name == "stablehlo.custom_call"
        if is_call and ir.StringAttr(operation.attributes["call_target_name"]).value.startswith(target):
            found.append(read(operation))
        return ir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    module.operation.walk(visit)
    if not found:
        raise LookupError(f"no {target} in the lowered program: jax {jax.__version__} may name it otherwise")
    return found


def kernels(lowered: jax.stages.Lowered) -> dict[str, int]:
    """Return name -> warps of the kernels of Pallas' Triton backend in a program from `offline.lower`."""
    return dict(custom_calls(lowered, "__gpu$xla.gpu.triton", _kernel))


def _kernel(operation: Any) -> tuple[str, int]:
    from jaxlib.mlir import ir

    config = ir.DictAttr(operation.attributes["mhlo.backend_config"])
    # The `name` of the launch: the IR itself has the name of the body.
    location = re.search(r'([^"/]+)/pallas_call"', str(operation.location))
    name = location[1] if location else ir.StringAttr(config["name"]).value
    return name, ir.IntegerAttr(config["num_warps"]).value


def toolchain() -> dict[str, str]:
    """Return names and versions of the tools that determine a report's numbers, besides the assembler."""
    packages = ["jax", "jaxlib", *(name.replace("_", "-") for name in PLUGINS), "triton"]
    # In the order of the path: of two copies, the first is imported.
    found = [*importlib.metadata.distributions()]
    installed = {package.name: package.version for package in reversed(found)}
    versions = {name: installed[name] for name in packages if name in installed}
    return {"target": ARCHITECTURE, "compiler": "XLA", **versions}


def assemble(name: str, ptx: str, warps: int, shared: int, used: Compiler) -> Resources:
    """Assemble PTX for the architecture that it names, and read what the assembler reports.

    Args:
        shared: bytes of dynamic shared memory, which PTX does not contain.
        used: the compiler whose assembler is tried first.
    """
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    architecture = target[1] if target else ARCHITECTURE
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        report = _assemble(source, Path(folder, "kernel.cubin"), used, architecture)
    registers = _number(r"Used (\d+) registers", report)
    if not registers:
        raise RuntimeError(f"ptxas did not report how many registers {name} uses")
    kinds = ("stack frame", "spill stores", "spill loads", "smem")
    stack, stores, loads, own_shared = (_number(rf"(\d+) bytes {kind}", report) for kind in kinds)
    shared += own_shared
    programs = blocks_per_sm(registers, warps, shared, architecture)
    wgmma, mma = (ptx.count(name) for name in ("wgmma.mma_async", "mma.sync"))
    return Resources(name, registers, stack, stores, loads, shared, programs, wgmma, mma)


def blocks_per_sm(registers: int, warps: int, shared: int, architecture: str = ARCHITECTURE) -> int:
    """Return how many programs one multiprocessor holds at a time.

    Args:
        registers: per thread; allocated to warps in units of 256 from four files of 16384.
        shared: bytes, without the 1024 per program that the system takes.
    """
    number = re.sub(r"\D", "", architecture)  # "sm_90a" has capability 9.0
    have = next(x for x in devices.FAMILIES if x.capability == f"{number[:-1]}.{number[-1]}")
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = 4 * (16384 // per_warp) // warps
    by_shared = (have.shared + 1024) // (-(-(shared + 1024) // 128) * 128)
    return min(by_registers, by_shared, have.warps // warps, have.programs)


def _assemble(source: Path, binary: Path, used: Compiler, architecture: str = ARCHITECTURE) -> str:
    """Return the output of `ptxas -v`, by the first assembler that supports the PTX version."""
    refusals = []
    for tool in _assemblers(used):
        words = [tool, "-v", f"-arch={architecture}", source, "-o", binary]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout + done.stderr
        refusals.append(f"{tool}: {(done.stderr or done.stdout).strip().splitlines()[0]}")
        if "Unsupported .version" not in done.stderr:
            raise RuntimeError(refusals[-1])
    raise ImportError(f"no ptxas that is new enough ({INSTALL}); {'; '.join(refusals) or 'none found'}")


def assembler(used: Compiler) -> str:
    """Return the path of the `ptxas` that belongs to a compiler."""
    if tool := next(_assemblers(used), None):
        return tool
    raise ImportError(f"no ptxas ({INSTALL})")


def _assemblers(used: Compiler) -> Iterator[str]:
    """Yield paths of `ptxas`: first the one that belongs to the compiler, last the one on PATH."""
    patterns = {"xla": ["nvidia/*/bin", "nvidia/*/*/bin"], "triton": ["triton/backends/nvidia/bin"]}
    for pattern in [*patterns.pop(used), *(pattern for others in patterns.values() for pattern in others)]:
        package, below = pattern.split("/", 1)
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            # The triton wheel has a second assembler, ptxas-blackwell, which also supports Hopper.
            found = Path(folder).glob(f"{below}/ptxas*")
            yield from sorted(str(tool) for tool in found if os.access(tool, os.X_OK))
    if on_path := shutil.which("ptxas"):
        yield on_path


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
