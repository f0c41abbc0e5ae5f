"""`fit`: measure how much shared memory the kernels take on each family of GPUs.

Compiles the kernels of calls on each of `KINDS`, without such a GPU, and writes `shared_memory.json`. From it
tests prove that the tuning tables choose nothing that does not fit, and docs/kernels.md gets its table of
GPUs. Needs jax 0.11 or newer with its CUDA plugin (extra `inspect`).
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax import markdown
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.cases.taylor_attention import at_highest_precision
from benchmarks.gpu.static.topology import compile_program, placed, use_cpu
from pallas_kernels import devices
from pallas_kernels.offline import lowering_for

FILE = Path(__file__).with_name("shared_memory.json")

KINDS = {
    "NVIDIA A100": "A100, A30",
    "NVIDIA GeForce RTX 4090": "RTX 4090, L4, L40S",
    "NVIDIA H200": "H100, H200",
    "NVIDIA B200": "B200",
}
"""A GPU of each family, and the family's name in tables."""

CALLS = {
    "bfloat16, K = 16": (16, "bfloat16"),
    "bfloat16, K = 24": (24, "bfloat16"),
    "bfloat16, K = 32": (32, "bfloat16"),
    "float32, K = 16": (16, "float32"),
    "float32, K = 24": (24, "float32"),
}
"""Calls of `taylor_attention` with V = 64, as named in the table."""


@dataclass(frozen=True)
class Fit:
    """Compile the kernels for every family of GPUs and write how much shared memory they take."""

    def run(self, command: str) -> int:
        """Compile everything, write the numbers and print the table; return 0."""
        use_cpu()
        found: dict[str, dict[str, int]] = {}
        for kind in KINDS:
            print(f"compiling for {kind}", file=sys.stderr)
            for name, count in measured(kind).items():
                found.setdefault(name, {})[_family(kind).capability] = count
        FILE.write_text(as_json(found))
        print("\n".join(table()))
        return 0


def as_json(found: dict[str, dict[str, int]]) -> str:
    """Format `recorded`, one case per line."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(counts)}" for name, counts in found.items())
    return f'{{\n "jax": "{jax.__version__}",\n "bytes": {{\n{lines}\n }}\n}}\n'


def recorded() -> dict[str, dict[str, int]]:
    """Return name of a case on a GPU -> compute capability -> bytes of shared memory per program."""
    return record()["bytes"]


def measured(kind: str, match: str = "") -> dict[str, int]:
    """Return name of a case on this GPU -> bytes of shared memory per program."""
    found = cases(kind, match)
    return {case.name: shared_memory(kind, case.function, *case.arguments) for case in found}


def cases(kind: str, match: str = "") -> list[Case]:
    """Return the catalogue with this GPU's variants, and variants that need more than its cases."""
    with lowering_for(kind):
        more = at_highest_precision()
        return [*catalog.cases(match), *(case for case in more if match in case.name)]


def shared_memory(kind: str, function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> int:
    """Return the bytes of shared memory that a program of the one kernel in `function` needs on this GPU.

    The compiler reports them if they are not available, so it compiles for a GPU with a single byte.
    """
    try:
        compile_program(function, *placed(arguments, kind, shared=1))
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"Shared memory size limit exceeded: requested (\d+), available: 1\b", str(error))
        if found is None:
            raise
        return int(found[1])
    return 0


def table() -> list[str]:
    """Return lines of markdown: the kernels of each GPU, and the most shared memory that they take there."""
    headings = ["GPUs", "compute capability", "kB per program", *CALLS, "decoding steps"]
    rows = []
    for kind, names in KINDS.items():
        family = _family(kind)
        with lowering_for(kind):
            cells = [_cell(family.capability, *call) for call in CALLS.values()]
            steps = "yes" if devices.cannot_run() is None else "xla"
        rows.append([names, family.capability, family.shared // 1024, *cells, steps])
    rows.append(["V100, T4; AMD", "below 8.0; none", "", *["xla"] * (len(CALLS) + 1)])
    return markdown.table(headings, rows)


def _cell(capability: str, key_size: int, dtype: str) -> str:
    """Format the most that a kernel of the call takes, in brackets if it runs on request only."""
    q, v = (jax.ShapeDtypeStruct((1, 1, 1, size), jnp.dtype(dtype)) for size in (key_size, 64))
    if pallas_kernels.supports_taylor_attention(q, q, v):
        return "xla"
    shape = f"taylor_attention/.* K{key_size} V64 {dtype}( packed)? Variant"
    fitting = {name: found for name, found in recorded().items() if re.match(shape, name)}
    counts = {name: found[capability] for name, found in fitting.items() if capability in found}
    text = f"{max(counts.values()) / 1024:.0f}"
    if pallas_kernels.is_slow_taylor_attention(q, q, v):
        return f"({text})"
    return text + (" \\*" if any("hoist=False" in name for name in counts) else "")


def record() -> dict[str, Any]:
    """Return `recorded`, and the release of jax that compiled it."""
    return json.loads(FILE.read_text())


def _family(kind: str) -> devices.Family:
    found = devices.family(kind)
    assert found is not None
    return found
