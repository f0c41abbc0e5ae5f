"""`inspect`: measure the resources that every kernel needs on an H200, without a GPU.

Compiles the kernels of the catalogue down to machine code and shows registers, spills, shared memory, how
many programs share a multiprocessor, tensor-core instructions and the length of the main loop. It measures
no times: the loop's issue slots and tensor cycles are lower bounds of an iteration that runs all branches.
Reports of several versions of jax make one page:

    python -m benchmarks inspect --explain --json 0.11.json                   # in each environment
    python -m benchmarks inspect --compare 0.11.json 0.12.json \
        --markdown benchmarks/results/static/kernels.md \
        --update benchmarks/gpu.md pallas_kernels/taylor_attention/README.md
"""

import dataclasses
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.static import compile_offline, mosaic_report, pages, xla_report
from benchmarks.static.compile_offline import Compiler, Resources
from benchmarks.static.topology import PLUGINS, collectives, compile_program, topology, use_cpu
from pallas_kernels import catalog, offline, sharded
from pallas_kernels.case import Case
from pallas_kernels.flags import one_line


@dataclass(frozen=True)
class Inspect:
    """Compile the kernels for an H200 without one and report the resources that they need."""

    match: str = ""
    """Only cases whose name contains this."""
    defaults: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only the variants that a call gets from the tuning tables."""
    all: tyro.conf.FlagCreatePairsOff[bool] = False
    """Also the other variants that `pallas_kernels.tune` would measure on each shape."""
    explain: tyro.conf.FlagCreatePairsOff[bool] = False
    """If the variant of a call spills registers, also compile others, to measure the cost of not spilling."""
    spill: int = 0
    """Bytes of stack per thread that a default variant may take for lack of registers."""
    json: Path | None = None
    """Write the report as JSON into this file."""
    markdown: Path | None = None
    """Write the report as Markdown into this file."""
    compare: tuple[Path, ...] = ()
    """Compile nothing: compare these reports, written by --json with different versions of jax."""
    update: tuple[Path, ...] = ()
    """Pages in which to rewrite the tables between markers, as `<!-- expected -->`."""
    devices: int = 1
    """More than 1: instead compile the sharded calls for so many H200s and report their collectives."""
    compiler: Compiler | None = None
    """Default: XLA if jax's CUDA plugin is installed, else the triton package."""

    def run(self, command: str) -> int:
        """Compile and report; return 1 if a default variant does not compile, or spills without a reason.

        A reason is that every variant without spills issues more instructions (`--explain` compiles them).
        Kernels that run on request only may spill; the report says which do.

        Raises:
            ImportError: a wheel of the extra `inspect` is missing.
            OSError: a report or a page cannot be read or written.
            ValueError: flags contradict each other, no case matches, or a page to update has no markers.
        """
        use_cpu()
        if self.devices < 1:
            raise ValueError(f"--devices {self.devices}: expected 1 or more")
        if self.devices > 1:
            return inspect_sharded(self.devices)
        if self.compare and self.json:
            raise ValueError("--compare and --json: expected one of them")
        stderr = Console(stderr=True)
        if self.compare:
            reports = [json.loads(path.read_text()) for path in self.compare]
        else:
            reports = [compile_report(self, stderr)]
        if self.json:
            self.json.write_text(json.dumps(reports[0], indent=1) + "\n")
        if self.markdown:
            self.markdown.write_text(pages.as_markdown(reports, self.spill))
        for page in self.update:
            pages.update(page, reports)
        for line in (line for report in reports for line in pages.problems(report, self.spill)):
            stderr.print(line, highlight=False, markup=False, soft_wrap=True)
        wrong = (case for report in reports for case in pages.unexplained(report, self.spill))
        return int(any(map(pages.is_picked, wrong)))


@dataclass(frozen=True)
class Entry:
    """A case and its kernels' resources, or why it does not compile."""

    case: Case
    kernels: tuple[Resources, ...] = ()
    error: str = ""


def compile_report(options: Inspect, stderr: Console) -> pages.Report:
    """Compile the cases that the flags select and print their table."""
    used = options.compiler or compile_offline.compiler()

    def compile_all(cases: Sequence[Case]) -> list[dict[str, Any]]:
        return [as_dict(inspect(x, used)) for x in track(cases, "compiling", console=stderr, transient=True)]

    chosen = choose(options)
    found = compile_all(chosen)
    if options.explain:
        pairs = zip(chosen, found, strict=True)
        spilling = [case for case, result in pairs if pages.is_picked(result) and pages.stack(result)]
        others = {x.name: x for case in spilling for x in catalog.alternatives(case)}
        known = {case.name for case in chosen}
        found += compile_all([x for name, x in others.items() if name not in known])
    versions = compile_offline.toolchain(used)
    if assemblers := {kernel["ptxas"] for case in found for kernel in case["kernels"]}:
        versions["ptxas"] = " and ".join(sorted(assemblers))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(_table(found))
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))
    return {"toolchain": versions, "cases": found}


@offline.lowering_for()
def choose(options: Inspect) -> list[Case]:
    """Return the cases that the flags select, with the block sizes of an H200."""
    if options.all and options.defaults:
        raise ValueError("--all and --defaults: expected one of them")
    cases = [case for case in catalog.cases(options.match) if case.default or not options.defaults]
    if any(map(importlib.util.find_spec, PLUGINS)):  # no other compiler has them
        cases += catalog.on_hopper(options.match)
    if not cases:
        raise ValueError(f"--match {options.match!r}: no such case")
    if options.all:
        cases += [x for case in cases if case.backend == "pallas" for x in catalog.candidates(case)]
    return list({case.name: case for case in cases}.values())


def inspect(case: Case, used: Compiler) -> Entry:
    """Lower and compile one case; a refusal by the compilers is an entry, too."""
    try:
        return Entry(case, tuple(resources(case, used)))
    except ImportError:
        raise
    except Exception as error:  # compilers raise all kinds; the other cases still count
        return Entry(case, error=one_line(error))


def resources(case: Case, used: Compiler) -> list[Resources]:
    """Return the resources of the kernels of one case."""
    if case.backend == "mosaic":
        return mosaic_report.report(case.function, *case.arguments)
    if used == "xla" and not compile_offline.offers_kernels():
        return xla_report.report(case.function, *case.arguments)
    lowered = offline.lower(case.function, *case.arguments)
    return [compile_offline.compile_kernel(kernel, used) for kernel in compile_offline.kernels(lowered)]


def inspect_sharded(devices: int) -> int:
    """Compile the public calls with rows and heads over virtual H200s; return 1 if any communicates."""
    mesh = sharded.mesh(topology(devices))
    shape = " x ".join(f"{size} {name}" for name, size in mesh.shape.items())
    calls = [*sharded.calls(), *sharded.hopper_calls()]
    table = Table("call", "collectives", title=f"Sharded over {devices} H200s ({shape})")
    moves = False
    for call in track(calls, "compiling", console=Console(stderr=True), transient=True):
        program = compile_program(call.function, *call.sharded(mesh))
        found = Counter(sorted(collectives(program.as_text() or "")))
        moves |= bool(found)
        table.add_row(call.name, ", ".join(f"{count} {name}" for name, count in found.items()) or "none")
    console = Console()
    console.print(table)
    console.print(f"jax {jax.__version__}")
    return int(moves)


def as_dict(entry: Entry) -> dict[str, Any]:
    """Return the entry as JSON holds it."""
    fields = ("op", "kernel", "shape", "variant", "default", "on_request", "rounds")
    found = {name: getattr(entry.case, name) for name in fields}
    kernels = [dataclasses.asdict(kernel) for kernel in entry.kernels]
    variant = dataclasses.asdict(entry.case.variant)
    return found | {"variant": variant, "error": entry.error, "kernels": kernels}


def _table(cases: Sequence[dict[str, Any]]) -> Table:
    headings = [heading for heading, _, _ in pages.COLUMNS]
    table = Table("case", "variant (* default)", title="Compiled for H200", row_styles=["", "dim"])
    for heading in headings:
        table.add_column(heading, justify="right")
    for case in cases:
        variant = pages.variant_text(case["variant"]) + (" *" if case["default"] else "")
        for name, *row in pages.rows_of(case, headings):
            table.add_row(name, variant, *row)
    return table
