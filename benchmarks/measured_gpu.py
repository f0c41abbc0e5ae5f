"""What GPUs were measured to do, by GPU: the rows of the kept reports, the newest of each case."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pallas_kernels.adopt import Report

Row = Mapping[str, Any]

Found = Mapping[tuple[str, str], Row]
"""by step and candidate"""


PANEL_BATCH = 4
"""Rows of the figure: Based, Figure 5, has its lengths at this batch."""


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

    def targets(self) -> dict[str, tuple[str, str]]:
        """Return target -> (wanted, newest measurement), by `benchmarks gpu`."""
        found: dict[str, tuple[str, str]] = {}
        for report in self.of("gpu"):
            for what, wanted, value in report.content["summary"]["tables"]["targets"]:
                if value is not None:
                    found[what] = wanted, value
        return found

    def checks(self) -> int:
        """Return the number of comparisons with float64 that the reports list, made or not."""
        rows = [row for report in self.of("gpu") for row in report.content["rows"]]
        return len({row["step"] for row in rows if row["section"] in ("correctness", "mosaic")})


def devices(reports: Sequence[Report]) -> list[Device]:
    """Return the GPUs in order of their names; `reports` are sorted by date."""
    names = sorted({report.device for report in reports})
    return [Device(name, tuple(x for x in reports if x.device == name)) for name in names]


def figure_facts(device: Device) -> str:
    """Return what the figure's panel of this GPU shows."""
    return f"one op on {device.source('gpu')}, bfloat16, {PANEL_BATCH} rows of 16 heads"


def panel_times(device: Device) -> dict[str, dict[int, float]]:
    """Return candidate -> length -> seconds of a forward and backward pass, for the figure."""
    found: dict[str, dict[int, float]] = {}
    for (_, what), row in sorted(device.rows("backward").items(), key=lambda item: item[1]["length"]):
        if row["batch"] == PANEL_BATCH:
            found.setdefault(what, {})[row["length"]] = row["seconds"]
    return found
