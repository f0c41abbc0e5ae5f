"""What GPUs were measured to do: reports on disk, and the newest row of each case by GPU."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu import journal
from benchmarks.gpu.sections.targets import targets
from pallas_kernels import devices as gpus
from pallas_kernels.checks import expect

READ = ("gpu", "timings")
"""Kinds of reports that are adopted: of the command, and of what was timed beside it."""

RESULTS = "benchmarks/results"
"""Folder of a checkout with a folder of reports per device."""

GPUS = ("gpu", "cuda", "rocm")
"""JAX's names of the platform."""

Row = Mapping[str, Any]

Found = Mapping[tuple[str, str], Row]
"""by step and candidate"""


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
        return str(self.content["machine"].get("device", ""))

    @property
    def capability(self) -> str:
        """Compute capability of the GPU.

        Raises:
            ValueError: it is not known.
        """
        family = gpus.family(self.device)
        if family is None:
            raise ValueError(f"{self.path}: device = {self.device!r}: expected a GPU of devices.FAMILIES")
        return family.capability

    @property
    def date(self) -> str:
        """Time of its start; sorts by time."""
        return str(self.content["machine"].get("date", ""))

    def refusal(self) -> str | None:
        """Return why its numbers must not be taken for those of a GPU, or None."""
        settings = self.content.get("settings", {})
        if tried := [name for name in ("quick", "interpret") if settings.get(name)]:
            return f"the run had --{' --'.join(tried)}, so it measured nothing"
        if not self.device:
            return "names no device: the run ended before it measured anything"
        platform = str(self.content["machine"].get("platform", ""))
        if platform.lower() in GPUS:
            return None
        return f"measured on {self.device!r} ({platform}), which is no GPU"


class Device(NamedTuple):
    """What was measured on one kind of GPU."""

    name: str
    reports: tuple[Report, ...]
    """the oldest first"""

    def rows(self, section: str) -> Found:
        """Return the newest row of each step and candidate of a section that has a time or a verdict."""
        found: dict[tuple[str, str], Row] = {}
        for report in self.of("timings", "gpu"):
            for row in report.content["rows"]:
                if row["section"] == section and row["status"] in ("measured", "passed", "wrong"):
                    in_torch = section == "torch" and not row["step"].startswith("train")
                    step = f"{row['step']} B{row['batch']} N{row['length']}" if in_torch else row["step"]
                    found[step, row["what"]] = row
        return found

    def of(self, *kinds: str) -> list[Report]:
        """Return the reports of these commands, the oldest first."""
        return [report for report in self.reports if report.kind in kinds]

    def source(self, *kinds: str) -> str:
        """Return the GPU, and the releases of jax and the dates of its reports of these commands."""
        machines = [report.content["machine"] for report in self.of(*kinds)]
        releases = ", ".join(sorted({str(machine["jax"]) for machine in machines}))
        dates = ", ".join(sorted({str(machine["date"])[:10] for machine in machines}))
        return f"{self.name}, jax {releases}, {dates}"

    def summary(self) -> list[Any]:
        """Return the targets of the newest report of `benchmarks gpu`: what, wanted, measured there."""
        return self.of("gpu")[-1].content["summary"]["tables"]["targets"] if self.of("gpu") else []

    def targets(self) -> dict[str, str]:
        """Return target -> its newest measurement, by `benchmarks gpu` or by timings beside it."""
        rows = [row for report in self.of("timings") for row in report.content["rows"]]
        found = {str(what): value for what, _, value in targets(rows) if value is not None}
        for report in self.of("gpu"):
            for what, _, value in report.content["summary"]["tables"]["targets"]:
                if value is not None:
                    found[what] = value
        return found

    def checks(self) -> int:
        """Return the number of checks of kernels that the reports list, made or not."""
        rows = [row for report in self.of("gpu") for row in report.content["rows"]]
        return len({row["step"] for row in rows if row["section"] in ("correctness", "mosaic")})


def devices(reports: Sequence[Report]) -> list[Device]:
    """Return the GPUs in order of their names; `reports` are sorted by date."""
    names = sorted({report.device for report in reports})
    return [Device(name, tuple(x for x in reports if x.device == name)) for name in names]


def read(folder: Path) -> list[Report]:
    """Return every report in a directory and its subdirectories, the oldest first."""
    paths = sorted(folder.rglob("*.json"))
    expect(len(paths) > 0, "--reports", str(folder), "a directory with reports, NAME.json")
    reports = [Report(path, journal.load(path, READ)) for path in paths]
    for report in reports:
        if (reason := report.refusal()) is not None:
            raise ValueError(f"{report.path}: {reason}")
    return sorted(reports, key=lambda report: report.date)


def kept(changes: Mapping[Path, str], tree: Path) -> list[Report]:
    """Return the reports of GPUs in the tree, with those of `changes`, the oldest first."""
    results = tree / RESULTS
    texts = {path: path.read_text() for path in sorted(results.glob("*/*.json"))}
    texts |= {path: text for path, text in changes.items() if path.is_relative_to(results)}
    contents = {path: json.loads(text) for path, text in texts.items()}
    found = [Report(path, content) for path, content in contents.items() if content.get("benchmark") in READ]
    found = [report for report in found if report.refusal() is None]
    return sorted(found, key=lambda report: report.date)


def folder(device: str) -> str:
    """Return the name of a device's folder of reports: "NVIDIA H100 80GB HBM3" -> "h100"."""
    family = gpus.family(device)
    if family is not None:
        device = max((name for name in family.names if device.startswith(name)), key=len)
    words = "".join(c if c.isalnum() else " " for c in device.removeprefix("NVIDIA").lower()).split()
    return "_".join(words)
