"""`inspect`: measure the registers, spills and shared memory of every kernel on an H200, without a GPU.

Compiles the kernels of the catalogue down to machine code, with the block sizes that calls get. It measures
no times: `tune` finds the fastest block sizes.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from based_jax.command import one_line
from benchmarks import tables
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.static import mosaic_report, xla_report
from benchmarks.gpu.static.resources import Resources, toolchain
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
    json: Path | None = None
    """Write the report as JSON into this file."""
    markdown: Path | None = None
    """Write the report as a page into this file."""

    def run(self, command: str) -> int:
        """Compile and report; return 1 if a kernel does not compile.

        Raises:
            ImportError: a wheel of the extra `inspect` is missing.
            OSError: a report cannot be written.
            ValueError: no case matches.
        """
        use_cpu()
        progress = Console(stderr=True)
        cases = [as_dict(case) for case in track(choose(self.match), "compiling", console=progress)]
        report = {"toolchain": toolchain(), "cases": cases}
        if self.json:
            self.json.write_text(json.dumps(report, indent=1) + "\n")
        if self.markdown:
            self.markdown.write_text(as_page(report))
        tables.show("Compiled for an H200", table(report))
        failed = [case for case in cases if case["error"]]
        for case in failed:
            progress.print(f"{case['name']}: {case['error']}", highlight=False, markup=False, soft_wrap=True)
        return int(bool(failed))


@offline.lowering_for()
def choose(match: str = "") -> list[Case]:
    """Return the cases whose name contains `match`, with the block sizes of an H200."""
    cases = [*(case for case in catalog.cases(match) if case.default), *catalog.on_hopper(match)]
    expect(len(cases) > 0, "--match", match, "part of the name of a case")
    return list({case.name: case for case in cases}.values())


def as_dict(case: Case) -> dict[str, Any]:
    """Lower and compile one case; a refusal by the compilers is its `error`."""
    found: dict[str, Any] = {"name": case.name, "error": "", "kernels": []}
    try:
        found["kernels"] = [dataclasses.asdict(kernel) for kernel in resources(case)]
    except ImportError:
        raise
    except Exception as error:  # compilers raise all kinds; the other cases still count
        found["error"] = one_line(error)
    return found


def resources(case: Case) -> list[Resources]:
    """Return the resources of the kernels of one case."""
    report = mosaic_report.report if case.backend == "mosaic" else xla_report.report
    return report(case.function, *case.arguments)


def as_page(report: dict[str, Any]) -> str:
    """Return the page of a report."""
    lines = [
        "# Resources of the kernels on an H200",
        "This page lists the registers, the spills and the shared memory of each kernel that calls get, as "
        "compiled for an H200.",
        "Written by `python -m benchmarks inspect --markdown`. The kernels were compiled, not run: no GPU "
        f"was used. Compiled with {', '.join(map(' '.join, report['toolchain'].items()))}.",
        EXPLAINED,
        table(report),
    ]
    return "\n\n".join(lines) + "\n"


def table(report: dict[str, Any]) -> str:
    """Return the rows of a report in Markdown, one per kernel."""
    return tables.table(["kernel", *COLUMNS], (row for case in report["cases"] for row in _rows(case)))


def _rows(case: dict[str, Any]) -> Iterator[list[str]]:
    if case["error"]:
        yield [case["name"], "fails", *[""] * (len(COLUMNS) - 1)]
    for kernel in case["kernels"]:
        name = f"{case['name']}: {kernel['kernel']}" if len(case["kernels"]) > 1 else case["name"]
        spills = f"{kernel['spill_stores']}/{kernel['spill_loads']}"
        shared = f"{kernel['shared'] / 1024:.1f}"
        last = (kernel[key] for key in ("blocks_per_sm", "wgmma", "mma"))
        yield [name, *map(str, (kernel["registers"], kernel["stack"], spills, shared, *last))]
