"""`inspect`: measure the registers, spills and shared memory of every kernel on an H200, without a GPU.

Compiles the kernels of the catalogue down to machine code, with the block sizes that calls get. It measures
no times: `tune` finds the fastest block sizes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks import tables
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.static.resources import Resources, of_mosaic, of_portable, toolchain
from benchmarks.gpu.static.topology import use_cpu
from pallas_kernels import offline
from pallas_kernels.checks import expect

COLUMNS = ("registers", "stack B", "spill B", "shared kB", "per SM", "wgmma", "mma")

EXPLAINED = (
    "registers: per thread, at most 255. stack: bytes of local memory per thread, for values that did not "
    "fit into registers. spill: bytes stored / loaded there, each instruction counted once. shared: of a "
    "program, of 227 kB. per SM: programs that fit on a multiprocessor at a time. wgmma, mma: tensor-core "
    "instructions of warp groups, and slower ones of single warps."
)


@dataclass(frozen=True)
class Inspect:
    """Compile the kernels for an H200 without one and report the resources that they need.

    Needs jax 0.11 or newer with its CUDA plugin (extra `inspect`).
    """

    match: str = ""
    """Only cases whose name contains this."""
    markdown: Path | None = None
    """Write the table as a page into this file."""

    def run(self, command: str) -> int:
        """Compile and report; return 0.

        Raises:
            ImportError: a wheel of the extra `inspect` is missing.
            OSError: the page cannot be written.
            ValueError: no case matches.
        """
        use_cpu()
        cases = track(choose(self.match), "compiling", console=Console(stderr=True))
        found = {case.name: resources(case) for case in cases}
        if self.markdown:
            self.markdown.write_text(as_page(found))
        tables.show("Compiled for an H200", table(found))
        return 0


@offline.lowering_for()
def choose(match: str = "") -> list[Case]:
    """Return the cases whose name contains `match`, with the block sizes of an H200."""
    cases = [*catalog.cases(match), *catalog.on_hopper(match)]
    expect(len(cases) > 0, "--match", match, "part of the name of a case")
    return cases


def resources(case: Case) -> list[Resources]:
    """Return the resources of the kernels of one case."""
    compiled = of_mosaic if case.backend == "mosaic" else of_portable
    return compiled(case.function, *case.arguments)


def as_page(found: Mapping[str, Sequence[Resources]]) -> str:
    """Return the page of the kernels of each case."""
    lines = [
        "# Resources of the kernels on an H200",
        "This page lists the registers, the spills and the shared memory of each kernel that calls get, as "
        "compiled for an H200.",
        "Written by `python -m benchmarks inspect --markdown`. The kernels were compiled, not run: no GPU "
        f"was used. Compiled with {', '.join(map(' '.join, toolchain().items()))}.",
        EXPLAINED,
        table(found),
    ]
    return "\n\n".join(lines) + "\n"


def table(found: Mapping[str, Sequence[Resources]]) -> str:
    """Return the rows in Markdown, one per kernel."""
    return tables.table(["kernel", *COLUMNS], (row for case in found.items() for row in _rows(*case)))


def _rows(name: str, kernels: Sequence[Resources]) -> Iterator[list[str]]:
    for kernel in kernels:
        title = f"{name}: {kernel.kernel}" if len(kernels) > 1 else name
        spills, shared = f"{kernel.spill_stores}/{kernel.spill_loads}", f"{kernel.shared / 1024:.1f}"
        last = kernel.blocks_per_sm, kernel.wgmma, kernel.mma
        yield [title, *map(str, (kernel.registers, kernel.stack, spills, shared, *last))]
