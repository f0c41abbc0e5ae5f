"""Keep a run of `decode` on disk: save after every value, stop in time, continue in a later process."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from based_jax.validate import expect
from benchmarks import report

RESULTS = "decode.json"
"""Name of the report in the directory of a run."""

ATTEMPTS = 2
"""Processes that may end while they measure one value, before it is left out."""

BROKE = "the process ended while it ran, twice"

_BY_MACHINE = ("memory_gib", "memory_limit_gib")
"""Settings that may differ between a run and its continuation: on a CPU they depend on the free RAM."""


@dataclass
class Progress:
    """Finished measurements, the current one, and the time left."""

    results: dict[str, Any]
    paths: Sequence[Path]
    seconds: float = math.inf
    """start of this process"""
    clock: Callable[[], float] = time.monotonic
    begun: float = field(init=False)
    longest: float = field(init=False, default=0.0)
    """seconds of the longest value"""
    started: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.begun = self.clock()
        self.results.setdefault("running", None)
        self.results.setdefault("broken", [])

    def left(self) -> float:
        """Return the seconds until this process must end."""
        return self.seconds - (self.clock() - self.begun)

    def has_time(self) -> bool:
        """Return whether one more value fits, if it takes as long as the longest so far."""
        return self.left() > self.longest

    def save(self) -> None:
        """Write the report."""
        for path in self.paths:
            report.save(self.results, path)

    def rows(self, part: str, value: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a part (at one value), in order of the values."""
        rows = [row for row in self.results["rows"] if row["part"] == part]
        return sorted((row for row in rows if value in (None, row["length"])), key=lambda row: row["length"])

    def is_broken(self, part: str, value: int) -> bool:
        """Return whether processes ended too often while they measured this value."""
        return self.results["broken"].count([part, value]) >= ATTEMPTS

    def start(self, part: str, value: int) -> None:
        """Record the value that is about to be measured."""
        self.results["running"], self.started = [part, value], self.clock()
        self.save()

    def finish(self, rows: list[dict[str, Any]]) -> None:
        """Keep the rows of a value."""
        self.results["rows"] += rows
        if self.results["running"]:
            self.longest = max(self.longest, self.clock() - self.started)
        self.results["running"] = None

    def history(self, part: str) -> dict[tuple[str, str], list[tuple[int, float]]]:
        """Return the measurements of an earlier process, in the form of `Study.past`."""
        found: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for row in self.rows(part):
            if row["seconds"]:
                found.setdefault((row["candidate"], row["pass"]), []).append((row["length"], row["seconds"]))
        return found


def resumed(path: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the report of an earlier process to continue; `fresh` if there is none.

    Only completely measured values are kept.

    Raises:
        ValueError: not a report of `decode`, or one with other settings.
    """
    if not path.exists():
        return fresh
    old = json.loads(path.read_text())
    of_decode = isinstance(old, dict) and (old.get("benchmark"), old.get("schema")) == (
        "decode",
        report.SCHEMA,
    )
    expect(of_decode, "--resume", str(path), f"a report of `decode` with schema {report.SCHEMA}")
    for name, value in fresh["settings"].items():
        before = old["settings"].get(name)
        same = before == value or name in _BY_MACHINE
        expect(same, "--resume", f"{name} {value}", f"{before}, as in {path}; repeat that run's flags")
    broken = [*old["broken"], *([old["running"]] if old["running"] else [])]
    unfinished = {(row["part"], row["length"]) for row in old["rows"] if row["status"] == "interrupted"}
    rows = [row for row in old["rows"] if (row["part"], row["length"]) not in unfinished]
    return old | {
        "rows": rows,
        "broken": broken,
        "running": None,
        "complete": False,
        "notes": fresh["notes"],
        "command": fresh["command"],
        "settings": old["settings"],
    }
