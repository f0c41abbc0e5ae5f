"""`python -m pallas_kernels.inspect`: what every kernel takes of an H200, found without a GPU.

Compiles the kernels of the catalogue down to machine code and shows registers, spills, shared memory, how
many programs share a multiprocessor, tensor-core instructions and the length of the main loop. It cannot
time anything: the loop's issue slots and tensor cycles are lower bounds of a round.
"""

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pallas_kernels import catalog, compile_offline, mosaic_report, offline, sharded
from pallas_kernels.case import Case
from pallas_kernels.compile_offline import Compiler, Resources
from pallas_kernels.flags import one_line, parse, run
from pallas_kernels.topology import PLUGINS, collectives, compile_program, topology, use_cpu

PROGRAM = "python -m pallas_kernels.inspect"

SHARED_LIMIT = 232448
"""Bytes of shared memory that one program may have on an H200."""


@dataclass(frozen=True)
class Inspect:
    """Compile the kernels for an H200 without one and report what they take of it."""

    match: str = ""
    """Only cases whose name contains this."""
    defaults: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only the variants that a call gets from the tuning tables."""
    all: tyro.conf.FlagCreatePairsOff[bool] = False
    """Also the other variants that `pallas_kernels.tune` would measure on each shape."""
    spill: int = 0
    """Bytes per thread that a default variant may store for want of registers."""
    json: Path | None = None
    """Write the report here, for programs."""
    markdown: Path | None = None
    """Write the report here, for people."""
    devices: int = 1
    """More than 1: instead compile the sharded calls for so many H200s and report their collectives."""
    compiler: Compiler | None = None
    """Default: XLA's Triton where jax offers it (0.10), else the triton package."""


@dataclass(frozen=True)
class Entry:
    """A case and what its kernels take, or why it does not compile."""

    case: Case
    kernels: tuple[Resources, ...] = ()
    error: str = ""

    def problem(self, spill: int = 0) -> str:
        """Why this must not be a default, or an empty text; `spill` bytes of stores are allowed."""
        if self.error:
            return self.error
        worst = max(kernel.spill_stores for kernel in self.kernels)
        if worst > spill:
            return f"spills {worst} bytes per thread"
        if any(kernel.shared > SHARED_LIMIT for kernel in self.kernels):
            return f"needs more than {SHARED_LIMIT} bytes of shared memory"
        return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if a default variant spills, does not fit or does not compile.

    Kernels that run on request only may spill; the report says which do.

    Raises:
        SystemExit: status 2 for flags that do not parse, 0 after `--help`.
        ImportError: a wheel of the extra `inspect` is missing.
        ValueError: no case matches.
    """
    options = parse(Inspect, argv, PROGRAM)
    use_cpu()
    if options.devices < 1:
        raise ValueError(f"--devices {options.devices}: expected 1 or more")
    if options.devices > 1:
        return inspect_sharded(options.devices)
    used = options.compiler or compile_offline.compiler()
    chosen = choose(options)
    stderr = Console(stderr=True)
    entries = [inspect(case, used) for case in track(chosen, "compiling", console=stderr, transient=True)]
    versions = compile_offline.toolchain(used)
    if assemblers := {kernel.ptxas for entry in entries for kernel in entry.kernels}:
        versions["ptxas"] = " and ".join(sorted(assemblers))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(_table(entries))
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))
    if options.json:
        report = {"toolchain": versions, "cases": [as_dict(entry) for entry in entries]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(as_markdown(entries, versions, options.spill))
    for line in problems(entries, options.spill):
        stderr.print(line, highlight=False, markup=False, soft_wrap=True)
    return int(any(entry.problem(options.spill) and _is_picked(entry.case) for entry in entries))


def choose(options: Inspect) -> list[Case]:
    """The cases that the flags ask for.

    Raises:
        ValueError: flags that contradict each other, or nothing matches.
    """
    if options.all and options.defaults:
        raise ValueError("--all and --defaults: expected one of them")
    cases = [case for case in catalog.cases(options.match) if case.default or not options.defaults]
    if any(map(importlib.util.find_spec, PLUGINS)):  # no other compiler knows them
        cases += catalog.on_hopper(options.match)
    if not cases:
        raise ValueError(f"--match {options.match!r}: no such case")
    if options.all:
        cases += [x for case in cases if case.backend == "pallas" for x in catalog.candidates(case)]
    return list({case.name: case for case in cases}.values())


def inspect(case: Case, used: Compiler) -> Entry:
    """Lower and compile one case; what the compilers refuse is an entry, too.

    Raises:
        ImportError: a wheel of the extra `inspect` is missing.
    """
    try:
        if case.backend == "mosaic":
            return Entry(case, tuple(mosaic_report.report(case.function, *case.arguments)))
        lowered = offline.lower(case.function, *case.arguments)
        found = compile_offline.kernels(lowered)
        return Entry(case, tuple(compile_offline.compile_kernel(kernel, used) for kernel in found))
    except ImportError:
        raise
    except Exception as error:  # compilers raise all kinds, and the other cases are worth reporting
        return Entry(case, error=one_line(error))


def inspect_sharded(devices: int) -> int:
    """Compile the public calls with rows and heads over virtual H200s; returns 1 if any of them communicates.

    Raises:
        ImportError: a wheel of the extra `inspect` is missing.
    """
    mesh = sharded.mesh(topology(devices))
    shape = " x ".join(f"{size} {name}" for name, size in mesh.shape.items())
    calls = [*sharded.calls(), *sharded.hopper_calls()]
    table = Table("call", "collectives", title=f"Sharded over {devices} H200s ({shape})")
    moves = False
    for call in track(calls, "compiling", console=Console(stderr=True), transient=True):
        program = compile_program(call.function, *call.sharded(mesh))
        found = collectives(program.as_text() or "")
        moves |= bool(found)
        table.add_row(
            call.name, ", ".join(f"{found.count(name)} {name}" for name in sorted(set(found))) or "none"
        )
    console = Console()
    console.print(table)
    console.print(f"jax {jax.__version__}")
    return int(moves)


def problems(entries: Iterable[Entry], spill: int = 0) -> list[str]:
    """What is wrong with which case, one line each; that a variant which nobody gets spills is no problem."""
    wrong = [entry for entry in entries if entry.error or (entry.problem(spill) and _is_picked(entry.case))]
    return [f"{entry.case.name}: {entry.problem(spill)}" for entry in wrong]


def _is_picked(case: Case) -> bool:
    """Whether calls that name no implementation run this variant."""
    return case.default and not case.on_request


def as_dict(entry: Entry) -> dict[str, Any]:
    """The entry as JSON holds it."""
    case = entry.case
    return {
        "op": case.op,
        "kernel": case.kernel,
        "shape": case.shape,
        "variant": dataclasses.asdict(case.variant),
        "default": case.default,
        "on_request": case.on_request,
        "problem": entry.problem(),
        "kernels": [dataclasses.asdict(kernel) for kernel in entry.kernels],
    }


def as_markdown(entries: Sequence[Entry], versions: dict[str, str], spill: int = 0) -> str:
    """The table, the versions and what the columns mean."""
    lines = ["# What the kernels take of an H200", ""]
    lines += [
        "Written by `python -m pallas_kernels.inspect --markdown`. Compiled, not run: no GPU was used.",
        "",
    ]
    lines += [f"Compiled with {', '.join(f'{name} {version}' for name, version in versions.items())}.", ""]
    lines += [f"- {heading}: {meaning}" for heading, meaning, _ in COLUMNS] + [""]
    headings = ["case", "variant", *(heading for heading, _, _ in COLUMNS)]
    rows = [headings, ["---", "---", *(["---:"] * len(COLUMNS))], *rows_of(entries)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    picked = [entry for entry in entries if _is_picked(entry.case)]
    found = problems(entries, spill)
    lines += [
        "",
        f"Problems of the {len(picked)} variants that calls get: {len(found) or 'none'}.",
    ]
    lines += ["", *(f"- {line}" for line in found)] if found else []
    asked = [entry for entry in entries if entry.case.on_request and entry.problem(spill)]
    if asked:
        lines += [
            "",
            "On request only (calls that name no implementation run something else there):",
            "",
        ]
        lines += [f"- {entry.case.name}: {entry.problem(spill)}" for entry in asked]
    return "\n".join(lines) + "\n"


def rows_of(entries: Iterable[Entry]) -> list[list[str]]:
    """One row of texts per kernel, with its name where a case runs several; an asterisk marks the default."""
    rows = []
    for entry in entries:
        case = entry.case
        title = [
            f"{case.op}/{case.kernel} {case.shape}",
            _variant(case.variant) + (" *" if case.default else ""),
        ]
        for kernel in entry.kernels:
            name = title[0] + (f": {kernel.kernel}" if len(entry.kernels) > 1 else "")
            rows.append([name, title[1], *(str(text(kernel)) for _, _, text in COLUMNS)])
        if entry.error:
            rows.append([*title, "fails", *([""] * (len(COLUMNS) - 1))])
    return rows


def _table(entries: Sequence[Entry]) -> Table:
    table = Table("case", "variant (* default)", title="Compiled for H200", row_styles=["", "dim"])
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right")
    for row in rows_of(entries):
        table.add_row(*row)
    return table


def _variant(variant: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in dataclasses.asdict(variant).items())


def _of_loop(name: str) -> Callable[[Resources], str]:
    return lambda kernel: str(getattr(kernel.loop, name)) if kernel.loop else "-"


COLUMNS: tuple[tuple[str, str, Callable[[Resources], Any]], ...] = (
    ("registers", "per thread, at most 255", lambda kernel: kernel.registers),
    (
        "spill B",
        "bytes per thread stored / loaded for want of registers",
        lambda k: f"{k.spill_stores}/{k.spill_loads}",
    ),
    ("shared kB", "shared memory per program, of 227", lambda kernel: f"{kernel.shared / 1024:.1f}"),
    ("per SM", "programs that fit on a multiprocessor at a time", lambda kernel: kernel.blocks_per_sm),
    ("wgmma", "tensor-core instructions of warp groups", lambda kernel: kernel.wgmma),
    ("mma", "slower tensor-core instructions of single warps", lambda kernel: kernel.mma),
    ("issue", "cycles to issue one round of the main loop for a program", _of_loop("issue_slots")),
    ("tensor", "cycles of the tensor cores in that round", _of_loop("tensor_cycles")),
    ("local", "loads and stores of spilled registers in that loop", _of_loop("local")),
    ("barriers", "waits for all warps in that loop", _of_loop("barriers")),
)
"""Heading, meaning, text for one kernel."""


if __name__ == "__main__":
    run(PROGRAM, main)
