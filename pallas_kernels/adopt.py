"""`python -m pallas_kernels.adopt DIR`: add measurements of a GPU machine to this checkout; needs no GPU.

DIR is the --out of the commands on that machine. Its reports become benchmarks/results/DEVICE/*.json, the
faster block sizes and backends rows of the tables in pallas_kernels, and the measured numbers columns of
docs/kernels.md and benchmarks/gpu.md. Everything is checked before anything is written; repeating it changes
nothing. `python -m benchmarks adopt --reports DIR` also updates the other pages and the figure.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pallas_kernels
from pallas_kernels import catalog, choices, devices, journal, measured_pages, tuning
from pallas_kernels.checks import expect
from pallas_kernels.flags import parse, run

PROGRAM = "python -m pallas_kernels.adopt"

READ = ("gpu", "decode", "tune", "timings", "profile")
"""Commands whose reports are adopted, and what was timed or profiled beside them."""

PAGES = ("docs/kernels.md", "benchmarks/gpu.md")

CHECKOUT = Path(pallas_kernels.__path__[0]).parent

GPUS = ("gpu", "cuda", "rocm")
"""JAX's names of the platform."""


@dataclass(frozen=True)
class Adopt:
    """Add the reports of a GPU machine to a checkout: block sizes, backends, results, pages."""

    reports: Path
    """Directory with the reports; may also be the first argument, without the flag's name."""
    tree: Path = CHECKOUT
    """The checkout to change."""
    rehearsal: bool = False
    """Also accept quick and interpreted runs on any device; only with a --tree that is a copy."""


@dataclass(frozen=True)
class Report:
    """A report and its properties."""

    path: Path
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """The command that wrote it."""
        return self.content["benchmark"]

    @property
    def device(self) -> str:
        """Name of the device, such as "NVIDIA H200"."""
        return self._device[0]

    @property
    def capability(self) -> str:
        """Compute capability of the GPU; "any" in a rehearsal elsewhere.

        Raises:
            ValueError: it is not known.
        """
        device, platform = self._device
        family = devices.family(device)
        if platform.lower() not in GPUS:
            return "any"
        if family is None:
            raise ValueError(f"{self.path}: device = {self.device!r}: expected a GPU of devices.FAMILIES")
        return family.capability

    @property
    def date(self) -> str:
        """Time of its start; sorts by time."""
        return str(self.content["machine"].get("date", ""))

    @property
    def _device(self) -> tuple[str, str]:
        """Kind and platform of the device."""
        machine, settings = self.content["machine"], self.content.get("settings", {})
        if self.kind == "decode":
            return str(settings.get("device_kind", "")), str(settings.get("device", ""))
        return str(machine.get("device", "")), str(machine.get("platform", ""))

    def refusal(self) -> str | None:
        """Return why its numbers must not be taken for those of a GPU, or None."""
        settings, (device, platform) = self.content.get("settings", {}), self._device
        if tried := [name for name in ("quick", "interpret") if settings.get(name)]:
            return f"the run had --{' --'.join(tried)}, so it measured nothing"
        if not device:
            return "names no device: the run ended before it measured anything"
        return None if platform.lower() in GPUS else f"measured on {device!r} ({platform}), which is no GPU"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Raises:
        ValueError: a file in the directory is not a report of a GPU, two reports have one name, or one is
            incomplete; then nothing is written.
        OSError: a file cannot be read or written.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        words.insert(0, "--reports")
    flags = parse(Adopt, words, PROGRAM)
    for page in PAGES:
        expect((flags.tree / page).is_file(), "--tree", str(flags.tree), f"a checkout, with {page}")
    copy = flags.tree.resolve() != CHECKOUT.resolve()
    expect(copy or not flags.rehearsal, "--rehearsal", True, "--tree DIR, a copy of this checkout")
    reports = read(flags.reports, flags.rehearsal)
    changes = results(reports, flags.tree)
    everything = kept(changes, flags.tree, flags.rehearsal)
    changes |= {**tables(reports, everything, flags.tree), **pages(everything, flags.tree)}
    for path, text in changes.items():
        if path.is_file() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {path}", flush=True)
    return 0


def read(folder: Path, rehearsal: bool) -> list[Report]:
    """Return every report in a directory and its subdirectories, the oldest first."""
    paths = sorted(folder.rglob("*.json"))
    expect(len(paths) > 0, "DIR", str(folder), "a directory with reports, NAME.json")
    reports = [Report(path, journal.load(path, READ)) for path in paths]
    for report in reports:
        if not rehearsal and (reason := report.refusal()):
            raise ValueError(f"{report.path}: {reason}")
    return sorted(reports, key=lambda report: report.date)


def results(reports: Sequence[Report], tree: Path) -> dict[Path, str]:
    """Return copies of the reports, in a folder for each device."""
    copies: dict[Path, str] = {}
    for report in reports:
        path = tree / measured_pages.RESULTS / measured_pages.folder(report.device) / report.path.name
        expect(path not in copies, "DIR", str(report.path), "no two reports of one name and device")
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
        if report.kind != "tune":
            continue
        with _complete(report):
            chosen = choices.tuning_rows(report.content["rows"], report.capability)
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


def kept(changes: Mapping[Path, str], tree: Path, rehearsal: bool = False) -> list[Report]:
    """Return the reports of GPUs in the tree, with those of `changes`, the oldest first."""
    folder = tree / measured_pages.RESULTS
    texts = {path: path.read_text() for path in sorted(folder.glob("*/*.json"))}
    texts |= {path: text for path, text in changes.items() if path.is_relative_to(folder)}
    contents = {path: json.loads(text) for path, text in texts.items()}
    found = [Report(path, content) for path, content in contents.items() if content.get("benchmark") in READ]
    found = [report for report in found if rehearsal or report.refusal() is None]
    return sorted(found, key=lambda report: report.date)


def pages(reports: Sequence[Report], tree: Path) -> dict[Path, str]:
    """Return the pages with the numbers of all reports."""
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for report in sorted(reports, key=lambda report: (report.device, report.date)):
        if report.kind == "gpu":
            by_device.setdefault(report.device, []).append(report.content)
    if not by_device:
        return {}
    new = {}
    for name in PAGES:
        page = tree / name
        new[page] = measured_pages.updated(page.read_text(), by_device)
    return new


if __name__ == "__main__":
    run(PROGRAM, main)
