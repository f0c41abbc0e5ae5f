"""`redraw`: draw a benchmark's figure again from its JSON, without measuring."""

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.flags import expect_figure
from pallas_kernels.checks import expect

MODULES = {
    "decode": "decode.figure",
    "mixers": "ops.mixer_figure",
    "ops": "ops.figure",
}
"""Benchmark -> the module of its figure."""


@dataclass(frozen=True)
class Redraw:
    """Draw the figure of `ops`, `mixers` or `decode` from its JSON."""

    json: Path
    """A report that one of these benchmarks wrote."""
    plot: Path
    """File of the figure (.png, .svg or .pdf; needs matplotlib)."""

    def run(self, command: str) -> int:
        """Draw; return 0. Raises ValueError for files that cannot be read or written."""
        expect_figure("--plot", self.plot)
        report = read(self.json, tuple(MODULES))
        import_module(f"benchmarks.{MODULES[report['benchmark']]}").draw(report, self.plot)
        print(self.plot)
        return 0


def read(path: Path, benchmarks: tuple[str, ...]) -> dict[str, Any]:
    """Read a report of one of the benchmarks.

    Raises:
        ValueError: it cannot be read, or belongs to another benchmark.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--json = {str(path)!r}: cannot be read ({error})") from None
    found = report.get("benchmark") if isinstance(report, dict) else None
    expect(found in benchmarks, "--json", str(path), f"a report of {', '.join(benchmarks)}")
    return report
