"""The table of targets in the documentation, from the reports of `python -m benchmarks gpu`.

A report contains it as rows [what, wanted, measured], so this module is independent of the measurements.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pallas_kernels import devices, markdown

RESULTS = "benchmarks/results"
"""Folder of a checkout with a folder of reports per device."""

NOTHING = "Not measured yet."


def updated(page: str, reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the page with the table of targets between its markers, if it has them.

    Args:
        reports: device -> its reports, the oldest first.
    """
    return markdown.between_markers(page, "measured:targets", table(reports)) or page


def table(reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table in Markdown, with a column per device, and the sources of its numbers.

    It uses the latest measurement of each device.
    """
    wanted: dict[str, str] = {}
    measured: dict[tuple[str, str], str] = {}
    for device, found in reports.items():
        for report in found:
            for what, want, value in report["summary"].get("tables", {}).get("targets", []):
                wanted[what] = want
                if value is not None:
                    measured[what, device] = value
    devices = [device for device in reports if any(device == other for _, other in measured)]
    shown = devices or [""]
    headings = ["", "wanted", *(f"measured, {device}" if device else "measured" for device in shown)]
    rows = [[*pair, *(measured.get((pair[0], device), "") for device in shown)] for pair in wanted.items()]
    text = "\n".join(markdown.table(headings, rows)).replace("|  |", "| |")
    return f"{text}\n\n{_source(reports, devices)}"


def folder(device: str) -> str:
    """Return the name of a device's folder of reports: "NVIDIA H100 80GB HBM3" -> "h100"."""
    family = devices.family(device)
    if family is not None:
        device = max((name for name in family.names if device.startswith(name)), key=len)
    words = "".join(c if c.isalnum() else " " for c in device.removeprefix("NVIDIA").lower()).split()
    return "_".join(words)


def _source(reports: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str]) -> str:
    parts = []
    for device in names:
        latest = reports[device][-1]["machine"]
        day = str(latest.get("date"))[:10]
        parts.append(f"{device} (`{RESULTS}/{folder(device)}`): jax {latest.get('jax')}, {day}")
    return f"Medians of `python -m benchmarks gpu`; {'; '.join(parts)}." if parts else NOTHING
