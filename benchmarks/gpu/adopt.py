"""`adopt`: write what was measured into this checkout; needs no GPU.

Reports of a GPU machine become benchmarks/results/DEVICE/*.json, the faster block sizes and backends rows of
the tables in `pallas_kernels`. The numbers of all kept reports become blocks of the pages, those of CPUs too.
Everything is checked before anything is written; repeating it changes nothing.
"""

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax import markdown, plot
from benchmarks import figures
from benchmarks.gpu import choices, measured_models, measured_ops
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.measured import RESULTS, Device, Report, devices, folder, kept, read
from pallas_kernels import tuning
from pallas_kernels.checks import expect

CHECKOUT = Path(__file__).resolve().parents[2]

BLOCKS: dict[str, Mapping[str, Callable[[Device], Iterator[str]]]] = {
    "README.md": {"checks": measured_ops.checks, "rates": measured_models.rates},
    "docs/gpu.md": {"attention": measured_ops.attention, "training": measured_models.training},
    "docs/numerics.md": {"errors": measured_ops.errors},
    "docs/decoding.md": {"steps": measured_ops.steps, "generation": measured_models.generation},
}
"""Page -> the names of its blocks, ``<!-- measured:NAME -->``, and their paragraphs for a GPU."""

FLOORS = "benchmarks/results/static/h200.json"

KEPT = {
    "cpu/decode": ("docs/decoding.md", "decode", "decode.tables"),
    "cpu/mixers": ("docs/benchmarks.md", "mixers", "ops.mixers"),
    "cpu/mqar": ("docs/benchmarks.md", "mqar", "models.training"),
    "cpu/train": ("docs/benchmarks.md", "train", "models.training"),
    "cpu/train_long": ("docs/benchmarks.md", "train_long", "models.training"),
    "static/h200": ("docs/gpu.md", "static", "gpu.static.command"),
}
"""Report of another command in `RESULTS` -> page, the block with its tables, the module that writes them."""

FIGURES = {"cpu/ops": "docs/figures/ops.png", "cpu/decode": "docs/figures/decoding.png"}
"""Report in `RESULTS` -> its figure."""

TARGETS = "benchmarks/gpu.md"
"""The page with the table of targets."""


@dataclass(frozen=True)
class Adopt:
    """Write what was measured: results of a GPU, tables of block sizes and backends, pages and figures."""

    reports: Path | None = None
    """Directory with reports of a GPU machine, its --out; by default the pages follow benchmarks/results."""

    def run(self, command: str) -> int:
        """Write; return 0. The figures need matplotlib.

        Raises:
            ValueError: a file is not a complete report of a GPU; then nothing is written.
        """
        adopt(self.reports, CHECKOUT)
        if (reason := plot.missing()) is not None:
            print(f"the figures stay as they are: {reason}")
            return 0
        for name, path in FIGURES.items():
            figures.draw(json.loads((CHECKOUT / RESULTS / f"{name}.json").read_text()), CHECKOUT / path)
        figures.draw_overview(CHECKOUT, CHECKOUT / "docs/figures/overview.png")
        return 0


def adopt(reports: Path | None, tree: Path) -> None:
    """Add reports to a checkout.

    Args:
        reports: directory with the reports; None adds none.

    Raises:
        ValueError: a file in the directory is not a report of a GPU, two reports have one name, or one is
            incomplete; then nothing is written.
        OSError: a file cannot be read or written.
    """
    found = [] if reports is None else read(reports)
    changes = results(found, tree)
    everything = kept(changes, tree)
    changes |= tables(found, everything, tree)
    changes |= pages(everything, tree, changes)
    for path, text in changes.items():
        if path.is_file() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}", flush=True)


def results(reports: Sequence[Report], tree: Path) -> dict[Path, str]:
    """Return copies of the reports, in a folder for each device."""
    copies: dict[Path, str] = {}
    for report in reports:
        path = tree / RESULTS / folder(report.device) / report.path.name
        expect(path not in copies, "--reports", str(report.path), "no two reports of one name and device")
        copies[path] = report.path.read_text()
    return copies


def tables(reports: Sequence[Report], kept: Sequence[Report], tree: Path) -> dict[Path, str]:
    """Return the tables of block sizes, with the faster ones added, and those of backends.

    Args:
        reports: the new ones.
        kept: these and all earlier ones, the oldest first: each table of backends follows from them alone.
    """
    found: dict[Path, list[dict[str, Any]]] = {}
    backends: dict[str, list[choices.Compared]] = {}
    for report in reports:
        with _complete(report):
            tuned = [row for row in report.content["rows"] if row["section"] == "tune"]
            chosen = choices.tuning_rows(tuned, report.capability)
        for op, rows in chosen.items():
            expect(op in catalog.OPS, f"op in {report.path}", op, f"one of {', '.join(catalog.OPS)}")
            path = tree / "pallas_kernels" / op / "tuning.json"
            for row in rows:
                found[path] = choices.with_row(found.get(path) or json.loads(path.read_text()), row)
    for report in kept:
        if report.kind == "gpu":
            with _complete(report):
                backends.setdefault(report.capability, []).extend(choices.compared(report.content))
    for op in choices.AXES:
        path = tree / "pallas_kernels" / op / "backends.json"
        found[path] = [
            row
            for family, compared in sorted(backends.items())
            for row in choices.backend_rows(compared, family).get(op, [])
        ]
    return {path: tuning.as_json(rows) for path, rows in found.items()}


@contextlib.contextmanager
def _complete(report: Report) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError) as error:
        raise ValueError(f"{report.path}: a row lacks {error}") from None


def pages(
    reports: Sequence[Report], tree: Path, changes: Mapping[Path, str] | None = None
) -> dict[Path, str]:
    """Return the pages of a checkout with their blocks of measured numbers.

    Args:
        reports: all of the checkout, the oldest first.
        changes: texts of files that are not written yet.

    Raises:
        ValueError: a page lacks the markers of a block.
    """
    floors = json.loads((tree / FLOORS).read_text())
    found = [device for device in devices(reports) if device.of("gpu", "timings")]
    blocks = {
        page: {f"measured:{name}": _paragraphs(found, block) for name, block in named.items()}
        for page, named in BLOCKS.items()
    }
    programs = _paragraphs(found, lambda device: measured_models.programs(device, floors))
    blocks["docs/gpu.md"]["measured:programs"] = programs
    paths = {op: tree / "pallas_kernels" / op / "backends.json" for op in choices.AXES}
    backends = {op: json.loads((changes or {}).get(path) or path.read_text()) for op, path in paths.items()}
    blocks["docs/kernels.md"] = {"measured:defaults": measured_ops.defaults(backends)}
    blocks[TARGETS] = {"measured:targets": targets(found)}
    for name, (page, block, module) in KEPT.items():
        path = tree / RESULTS / f"{name}.json"
        if path.is_file():
            report, write = json.loads(path.read_text()), importlib.import_module(f"benchmarks.{module}").text
            blocks.setdefault(page, {})[block] = "\n\n".join([write(report), *report["notes"]])
    return {tree / page: _filled(page, (tree / page).read_text(), named) for page, named in blocks.items()}


def _filled(page: str, text: str, blocks: Mapping[str, str]) -> str:
    for name, block in blocks.items():
        filled = markdown.between_markers(text, name, block)
        if filled is None:
            raise ValueError(f"{page}: expected the lines <!-- {name} --> and <!-- /{name} -->")
        text = filled
    return text


def targets(found: Sequence[Device]) -> str:
    """Return the table of targets, with a column per GPU and the sources of its numbers."""
    rows: dict[str, list[str]] = {}
    shown = [device for device in found if device.targets()]
    for what, wanted, _ in (row for device in found for row in device.summary()):
        cells = (device.targets().get(what, "") for device in shown)
        rows[what] = [what, wanted, *(cells if shown else [""])]
    headings = ["", "wanted", *(f"measured, {device.name}" for device in shown)]
    text = "\n".join(markdown.table(headings if shown else [*headings, "measured"], rows.values()))
    sources = "; ".join(_source(device) for device in shown)
    note = f"Medians of `python -m benchmarks gpu` and of timings beside it; {sources}."
    return text.replace("|  |", "| |") + f"\n\n{note if shown else 'Not measured yet.'}"


def _source(device: Device) -> str:
    latest = device.reports[-1].content["machine"]
    day = str(latest.get("date"))[:10]
    return f"{device.name} (`{RESULTS}/{folder(device.name)}`): jax {latest.get('jax')}, {day}"


def _paragraphs(devices: list[Device], block: Callable[[Device], Iterator[str]]) -> str:
    return "\n\n".join(paragraph for device in devices for paragraph in block(device))
