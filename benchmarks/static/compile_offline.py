"""Compile kernels for an H200 on a machine without one, and read their resources from the machine code.

The lowered program holds the Triton IR of every kernel. XLA's own Triton compiles it if jax still offers
that (0.10); from 0.11 on only XLA's whole compiler does (`xla_report`). The `triton` package also compiles
it, but is not the same: registers and spills may differ. Needs the wheels of the extra `inspect`, no GPU and
no driver; times nothing. A missing wheel is an ImportError, a compiler's refusal a RuntimeError.
"""

import functools
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
from typing import Any, Literal, TypeVar, cast

import jax

from benchmarks.static import sass
from benchmarks.static.topology import INSTALL, PLUGINS, load_plugins
from pallas_kernels import devices

ARCHITECTURE = "sm_90a"

Compiler = Literal["xla", "triton"]

Found = TypeVar("Found")


@dataclass(frozen=True)
class Kernel:
    """One kernel of a lowered program."""

    name: str
    code: bytes
    """Triton IR as MLIR bytecode"""
    warps: int
    stages: int


@dataclass(frozen=True)
class Resources:
    """Resources of one program (thread block) of a compiled kernel."""

    kernel: str
    warps: int
    stages: int
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
    loop: sass.Loop | None
    """the main loop; None for a kernel without one, without `nvdisasm`, or not for Hopper"""
    ptxas: str
    """release of the assembler, which allocates the registers"""


def custom_calls(lowered: jax.stages.Lowered, target: str, read: Callable[[Any], Found]) -> list[Found]:
    """Apply `read` to each call whose target begins with `target` in a lowered program, in order of appearance.

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


def kernels(lowered: jax.stages.Lowered) -> list[Kernel]:
    """Return the Triton kernels of a program from `offline.lower`."""
    return custom_calls(lowered, "__gpu$xla.gpu.triton", _kernel)


def _kernel(operation: Any) -> Kernel:
    from jaxlib.mlir import ir

    config = ir.DictAttr(operation.attributes["mhlo.backend_config"])
    # The `name` of the launch: the IR itself has the name of the body.
    location = re.search(r'([^"/]+)/pallas_call"', str(operation.location))
    return Kernel(
        name=location[1] if location else ir.StringAttr(config["name"]).value,
        code=ir.StringAttr(config["ir"]).value_bytes,
        warps=ir.IntegerAttr(config["num_warps"]).value,
        stages=ir.IntegerAttr(config["num_stages"]).value,
    )


def compiler() -> Compiler:
    """Return the default compiler of `compile_kernel`."""
    if any(map(importlib.util.find_spec, PLUGINS)):
        return "xla"
    if importlib.util.find_spec("triton"):
        return "triton"
    raise ImportError(f"no compiler for {ARCHITECTURE}: needs jax's CUDA plugin, or triton ({INSTALL})")


def toolchain(used: Compiler) -> dict[str, str]:
    """Return names and versions of the tools that determine a report's numbers, besides the assembler."""
    packages = ["jax", "jaxlib", *(name.replace("_", "-") for name in PLUGINS), "triton"]
    # In the order of the path: of two copies, the first is imported.
    found = [*importlib.metadata.distributions()]
    installed = {package.name: package.version for package in reversed(found)}
    versions = {name: installed[name] for name in packages if name in installed}
    name = {"xla": "XLA", "triton": "the triton package"}[used]
    return {"target": ARCHITECTURE, "compiler": name, **versions}


def offers_kernels() -> bool:
    """Return whether jax compiles single kernels with XLA's Triton, as 0.10 does."""
    return _xla_triton() is not None


def compile_kernel(kernel: Kernel, used: Compiler) -> Resources:
    """Compile one kernel down to machine code."""
    ptx, shared = _ptx_of_xla(kernel) if used == "xla" else _ptx_of_triton(kernel)
    return assemble(kernel.name, ptx, kernel.warps, kernel.stages, shared, used)


def assemble(name: str, ptx: str, warps: int, stages: int, shared: int, used: Compiler) -> Resources:
    """Assemble PTX for the architecture that it names, and read the resources of the machine code.

    Args:
        shared: bytes of dynamic shared memory, which PTX does not contain.
        used: the compiler whose assembler is tried first.
    """
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    architecture = target[1] if target else ARCHITECTURE
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        report, assembler = _assemble(source, binary, used, architecture)
        disassembler = next(_programs("nvdisasm", used), None) if architecture == ARCHITECTURE else None
        loop = sass.main_loop(_run(disassembler, "-c", binary), warps) if disassembler else None
    registers = _number(r"Used (\d+) registers", report)
    if not registers:
        raise RuntimeError(f"ptxas {_release(assembler)} did not report how many registers it used")
    kinds = ("stack frame", "spill stores", "spill loads", "smem")
    *local, own_shared = (_number(rf"(\d+) bytes {kind}", report) for kind in kinds)
    shared += own_shared
    programs = blocks_per_sm(registers, warps, shared, architecture)
    products = (ptx.count(name) for name in ("wgmma.mma_async", "mma.sync"))
    taken = registers, *local, shared, programs, *products
    return Resources(name, warps, stages, *taken, loop=loop, ptxas=_release(assembler))


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


def _xla_triton() -> Any:
    """Return XLA's Triton as jax offers it (private; removed in 0.11), or None."""
    if not any(map(importlib.util.find_spec, PLUGINS)):
        return None
    try:
        from jax._src.lib import triton
    except ImportError:
        return None
    if not hasattr(triton, "compile"):
        return None
    load_plugins()  # which register the compiler
    return triton if cast(Any, triton).has_compilation_handler("cuda") else None


def _ptx_of_xla(kernel: Kernel) -> tuple[str, int]:
    """Return PTX text and bytes of dynamic shared memory."""
    triton = _xla_triton()
    if triton is None:
        raise ImportError(f"XLA's Triton needs jax 0.10 with its CUDA plugin ({INSTALL})")
    options = {"num_warps": kernel.warps, "num_ctas": 1, "num_stages": kernel.stages}
    result = triton.compile("cuda", kernel.code, "9.0", **options)
    return result.asm, result.smem_bytes


def _ptx_of_triton(kernel: Kernel) -> tuple[str, int]:
    """Return PTX text and bytes of dynamic shared memory."""
    try:
        import triton
        from triton.backends.compiler import GPUTarget
    except ImportError as error:
        raise ImportError(f"the triton package is missing ({INSTALL})") from error
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ttir")
        source.write_text(_text(kernel.code))
        # XLA's Triton does not fuse products and sums, and it is the one that runs these kernels.
        options = {"num_warps": kernel.warps, "num_stages": kernel.stages, "enable_fp_fusion": False}
        result: Any = triton.compile(str(source), target=GPUTarget("cuda", 90, 32), options=options)
    return result.asm["ptx"], result.metadata.shared


def _text(code: bytes) -> str:
    """Return Triton IR as text: bytecode depends on the MLIR version, which differs between the Tritons."""
    from jaxlib.mlir import ir
    from jaxlib.triton import dialect

    with ir.Context() as context:
        dialect.register_dialect(context)
        module: Any = ir.Module.parse(code)
        return module.operation.get_asm(enable_debug_info=False)


def _assemble(
    source: Path, binary: Path, used: Compiler, architecture: str = ARCHITECTURE
) -> tuple[str, str]:
    """Return the output of `ptxas -v` and the assembler, the first that supports the PTX version."""
    refusals = []
    for tool in _programs("ptxas", used):
        words = [tool, "-v", f"-arch={architecture}", source, "-o", binary]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout + done.stderr, tool
        refusals.append(f"{_release(tool)}: {(done.stderr or done.stdout).strip().splitlines()[0]}")
        if "Unsupported .version" not in done.stderr:
            raise RuntimeError(f"ptxas {refusals[-1]}")
    raise ImportError(f"no ptxas that is new enough ({INSTALL}); {'; '.join(refusals) or 'none found'}")


def assembler(used: Compiler) -> str:
    """Return the path of the `ptxas` that belongs to a compiler."""
    for tool in _programs("ptxas", used):
        return tool
    raise ImportError(f"no ptxas ({INSTALL})")


def _programs(name: str, used: Compiler) -> Iterator[str]:
    """Yield paths of the program: first the one that belongs to the compiler, last the one on PATH."""
    patterns = {"xla": ["nvidia/*/bin", "nvidia/*/*/bin"], "triton": ["triton/backends/nvidia/bin"]}
    for pattern in [*patterns.pop(used), *(pattern for others in patterns.values() for pattern in others)]:
        package, below = pattern.split("/", 1)
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            # The triton wheel has a second assembler, ptxas-blackwell, which also supports Hopper.
            found = Path(folder).glob(f"{below}/{name}*")
            yield from sorted(str(tool) for tool in found if os.access(tool, os.X_OK))
    if on_path := shutil.which(name):
        yield on_path


@functools.cache
def _release(tool: str) -> str:
    """Return the release, such as "12.9.86"."""
    found = re.search(r"V(\d+(\.\d+)+)", _run(tool, "--version"))
    return found[1] if found else "0"


def _run(tool: str, *arguments: Any) -> str:
    return subprocess.run([tool, *arguments], capture_output=True, text=True).stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
