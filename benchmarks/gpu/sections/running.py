"""Order the steps of a run, those without a committed measurement early, and run them until time is over."""

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks.gpu import measured
from benchmarks.gpu.journal import BROKE
from benchmarks.gpu.sections.session import Session, Step
from benchmarks.gpu.sections.stopwatch import Comparison, begin

ROOT = Path(__file__).resolve().parents[3]

FREE_BYTES = 2**31
"""Memory that a process may keep while a step with `needs_memory` runs."""

Listed = tuple[str, Step]
"""a section's name and its step"""


class NewProcessNeededError(Exception):
    """The next step needs the memory of the device, which a process does not give back."""


def listed(session: Session, sections: Mapping[str, tuple[str, str]]) -> list[Listed]:
    """Return the steps of all sections in their order; one that cannot list its steps gets a row instead.

    Args:
        sections: name -> module of `gpu.sections`, and its function that lists the steps.
    """
    steps: list[Listed] = []
    for session.section, (module, function) in sections.items():
        with session.guarded("listing", "all"):
            found = importlib.import_module(f"benchmarks.gpu.sections.{module}")
            steps += [(session.section, step) for step in getattr(found, function)(session)]
    return steps


def in_order(steps: Sequence[Listed], committed: Mapping[tuple[str, str], str], sources: str) -> list[Listed]:
    """Return urgent steps, then those never measured, then those of other sources, then the others."""

    def rank(entry: Listed) -> int:
        section, step = entry
        before = committed.get((section, step.name))
        return 0 if step.urgent else 1 if before is None else 2 if before != sources else 3

    return sorted(steps, key=rank)


def committed(folder: Path, device: str) -> dict[tuple[str, str], str]:
    """Return (section, step) -> the sources of its newest measurement in a folder of results, by device."""
    reports = [json.loads(path.read_text()) for path in (folder / measured.folder(device)).glob("*.json")]
    return {
        (row["section"], row["step"]): report.get("sources", "")
        for report in sorted(reports, key=lambda report: str(report["machine"].get("date")))
        if report["benchmark"] == "gpu"
        for row in report["rows"]
        if row["status"] in ("measured", "passed")
    }


def sources() -> str:
    """Return a digest of the code that is measured."""
    digest = hashlib.sha256()
    for folder in ("pallas_kernels", "based_jax"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run(session: Session, steps: Sequence[Listed]) -> None:
    """Run the steps that no earlier process has run, until the time is spent.

    Raises:
        NewProcessNeededError: only another process can continue.
    """
    done = session.report["done"]
    waiting = [(section, step) for section, step in steps if [section, step.name] not in done]
    begun: dict[str, Comparison] = {}
    for position, (section, step) in enumerate(waiting):
        session.section, before = section, session.elapsed
        if session.left() <= 0:
            session.say(f"the time is spent: {len(waiting) - position} steps are left for --resume")
            for session.section, step in waiting[position:]:
                session.add(step=step.name, what="all", status="skipped", reason="the minutes were spent")
            break
        if step.needs_memory and _used_bytes() > FREE_BYTES:
            raise NewProcessNeededError(step.name)
        with session.guarded(step.name, "all"):
            if session.broken(step.name, "all"):
                session.skip(step.name, "all", BROKE)
            elif step.run is not None:
                step.run(session)
            else:
                if step.name not in begun:
                    begun = begin(session, _next_together(session, waiting[position:]))
                if step.name in begun:  # it is deleted with its arrays before the next ones begin
                    begun.pop(step.name).measure(session, **step.facts)
        done.append([section, step.name])
        session.save()
        session.say(f"{step.name}: done in {session.elapsed - before:.1f} s")
    session.section = ""


def _next_together(session: Session, waiting: Sequence[Listed]) -> list[tuple[str, Callable[[], Any]]]:
    """Return the next steps of this section that compare candidates."""
    together: list[tuple[str, Callable[[], Any]]] = []
    for section, step in waiting[: waiting[0][1].together]:
        if section != session.section or step.candidates is None or session.broken(step.name, "all"):
            break
        together.append((step.name, partial(step.candidates, session)))
    return together


def _used_bytes() -> int:
    """Return the memory that this process holds on the device, in use or not."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("pool_bytes", stats.get("bytes_in_use", 0))
