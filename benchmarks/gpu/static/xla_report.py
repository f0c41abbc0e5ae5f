"""Measure the resources of kernels on an H200 as compiled by XLA's whole GPU compiler, as users run them.

From jax 0.11 on nothing in Python compiles a single kernel with XLA's Triton. So the program is compiled as
on a GPU, and a script that keeps a copy of its input replaces `ptxas`, the assembler. Needs jax's CUDA plugin
and an assembler (extra `inspect`), no GPU and no driver.
"""

import re
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks.gpu.static.resources import Resources, assemble, assembler, kernels
from benchmarks.gpu.static.topology import compile_lowered, lower_program, placed, uncached

_ASSEMBLER = """#!/bin/sh
case "$1" in --*) ;; *) cp "$1" {folder}/$$.ptx ;; esac
exec {ptxas} "$@"
"""
"""XLA passes the source first, and queries the version before."""

_LAUNCH = re.compile(r" (\S+) grid: .* shared_memory: (\d+) bytes")


def report(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> list[Resources]:
    """Compile `function` for an H200 and assemble its kernels of Pallas' Triton backend.

    Raises:
        LookupError: `function` launches no such kernel, or the compiler's files are not as expected.
    """
    lowered = lower_program(function, *placed(arguments))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_assembler(folder, assembler("xla"))
        with uncached():
            compile_lowered(lowered, xla_gpu_cuda_data_dir=name, xla_dump_to=f"{name}/dump")
        sources, shared = _sources(folder), _shared(folder / "dump")
    # The program may also hold kernels that XLA made itself.
    found = kernels(lowered)
    if missing := found.keys() - (sources.keys() & shared.keys()):
        raise LookupError(f"jax {jax.__version__}: no {', '.join(missing)} among what XLA assembled")
    return [assemble(name, sources[name], warps, shared[name], "xla") for name, warps in found.items()]


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
