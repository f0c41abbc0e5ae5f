"""`python -m pallas_kernels.adopt DIR`: add measurements of a GPU machine to this checkout; needs no GPU.

DIR is the --out of the commands on that machine. Its reports become benchmarks/results/DEVICE/*.json, the
faster block sizes and backends rows of the tables in pallas_kernels, and the measured numbers columns of
docs/kernels.md and benchmarks/gpu.md. Everything is checked before anything is written; repeating it changes
nothing.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pallas_kernels
from pallas_kernels import catalog, choices, journal, measured_pages, tuning
from pallas_kernels.checks import expect
from pallas_kernels.flags import parse, run

PROGRAM = "python -m pallas_kernels.adopt"

READ = ("gpu", "decode", "tune", "backends")
"""Commands whose reports are adopted."""

PAGES = ("docs/kernels.md", "benchmarks/gpu.md")

RESULTS = "benchmarks/results"

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
    changes = {**results(reports, flags.tree), **tables(reports, flags.tree)}
    changes |= pages(changes, flags.tree, flags.rehearsal)
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
        path = tree / RESULTS / measured_pages.folder(report.device) / report.path.name
        expect(path not in copies, "DIR", str(report.path), "no two reports of one name and device")
        copies[path] = report.path.read_text()
    return copies


def tables(reports: Sequence[Report], tree: Path) -> dict[Path, str]:
    """Return the tables of block sizes and backends, with the faster ones added."""
    found: dict[Path, list[dict[str, Any]]] = {}

    def table(op: str, name: str) -> tuple[Path, list[dict[str, Any]]]:
        path = tree / "pallas_kernels" / op / name
        return path, found.setdefault(path, json.loads(path.read_text()))

    for report in reports:
        rows = report.content["rows"]
        try:
            if report.kind == "tune":
                for op, chosen in choices.tuning_rows(rows, report.device).items():
                    expect(op in catalog.OPS, f"op in {report.path}", op, f"one of {', '.join(catalog.OPS)}")
                    path, old = table(op, "tuning.json")
                    for row in chosen:
                        old = choices.with_row(old, row)
                    found[path] = old
            elif report.kind == "backends":
                path, old = table("taylor_attention", "backends.json")
                found[path] = choices.with_backends(old, rows, report.device)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{report.path}: a row lacks {error}") from None
    return {path: tuning.as_json(rows) for path, rows in found.items()}


def pages(changes: Mapping[Path, str], tree: Path, rehearsal: bool) -> dict[Path, str]:
    """Return the pages with the numbers of all results in the tree, old ones and those of `changes`."""
    folder = tree / RESULTS
    texts = {path: path.read_text() for path in sorted(folder.glob("*/*.json"))}
    texts |= {path: text for path, text in changes.items() if path.is_relative_to(folder)}
    reports = [Report(path, json.loads(text)) for path, text in texts.items()]
    by_device: dict[str, list[Mapping[str, Any]]] = {}
    for report in sorted(reports, key=lambda report: (report.device, report.date)):
        if report.kind == "gpu" and (rehearsal or report.refusal() is None):
            by_device.setdefault(report.device, []).append(report.content)
    if not by_device:
        return {}
    new = {}
    for name in PAGES:
        page = tree / name
        link = Path(os.path.relpath(folder, page.parent)).as_posix()
        new[page] = measured_pages.updated(page.read_text(), by_device, link)
    return new


if __name__ == "__main__":
    run(PROGRAM, main)
