"""Run the steps of a section until time is over."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu.journal import COMPLETE, DONE, SPENT
from benchmarks.gpu.sections.session import Session, Step
from benchmarks.gpu.sections.stopwatch import Comparison, begin


def listed(session: Session, module: str, function: str) -> list[Step]:
    """Return the steps that a function of a module of `gpu.sections` lists; a row instead if it cannot."""
    with session.guarded("listing", "all"):
        return getattr(importlib.import_module(f"benchmarks.gpu.sections.{module}"), function)(session)
    return []


def run(session: Session, steps: Sequence[Step]) -> None:
    """Run the steps that no earlier process has run, until the time is spent."""
    waiting = [step for step in steps if not session.is_done(step.name)]
    begun: dict[str, Comparison] = {}
    for position, step in enumerate(waiting):
        before = session.elapsed
        if session.left() <= 0:
            session.say(f"the time is spent: {len(waiting) - position} steps are left for --resume")
            for step in waiting[position:]:
                session.add(step=step.name, what="all", status="skipped", reason=SPENT)
            return
        if not session.broken("all", step.name):
            with session.guarded(step.name, "all"):
                if step.run is not None:
                    step.run(session)
                else:
                    if step.name not in begun:
                        begun = begin(session, _next_together(session, waiting[position:]))
                    if step.name in begun:  # it is deleted with its arrays before the next ones begin
                        begun.pop(step.name).measure(session, **step.facts)
        session.add(step=step.name, what="all", status=DONE)
        session.say(f"{step.name}: done in {session.elapsed - before:.1f} s")
    session.add(step="all", what="all", status=COMPLETE)


def _next_together(session: Session, waiting: Sequence[Step]) -> list[tuple[str, Callable[[], Any]]]:
    """Return the next steps that compare candidates."""
    together: list[tuple[str, Callable[[], Any]]] = []
    for step in waiting[: waiting[0].together]:
        if step.candidates is None or session.broken("all", step.name):
            break
        together.append((step.name, partial(step.candidates, session)))
    return together
