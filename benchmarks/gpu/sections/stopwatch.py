"""Run the steps of a section.

Calls are compiled side by side, warmed up and timed in turns; each sample ends with a wait.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.command import one_line
from benchmarks.gpu.journal import COMPLETE, DONE, SPENT
from benchmarks.gpu.sections.checks import error
from benchmarks.gpu.sections.session import Session, Step
from benchmarks.timing import Timing, calls_per_sample, in_turn

SAMPLES = 10
"""Samples of a median, of calls that are not slow."""

LONGEST_SECONDS = 4.0
"""Seconds of all samples of one candidate; a slow one gets fewer than requested, at least 3 (or 2)."""

SLOW_SECONDS = 1.0
"""Calls of more seconds have two samples at least."""

SHORT_SECONDS, WARM_CALLS = 0.01, 10
"""Of a call that is shorter, this many are timed to choose the calls of a sample: the first may be several
times as slow, and candidates with fewer calls a sample then seem slower, by the host's part of a call."""

COMPILE_SECONDS = 300.0
"""Seconds of all compilations at a time; longer ones count as hanging."""

COMPILERS = 12
"""Programs that compile at a time."""


@dataclass(frozen=True)
class Candidate:
    """Something to time."""

    name: str
    prepare: Callable[[], "Prepared"]
    """cheap: traces, allocates; an error it raises is the reason why this candidate is left out"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """further columns of its row"""
    bound: float | None = None
    """least seconds by the device's bandwidth and arithmetic"""
    ours: bool = False
    """whether it must work"""
    amounts: Mapping[str, float] = field(default_factory=dict)
    """column -> what a call does; its rate per second"""
    judge: Callable[[], Mapping[str, Any]] | None = None
    """runs it and returns the columns of its row, instead of a measurement"""
    agreement: float | None = None
    """largest difference from the first candidate's results, over the largest number; None: not compared"""


@dataclass
class Prepared:
    """A call that is ready to be compiled, if it needs to be."""

    call: Callable[[], Any]
    """starts it; does not wait"""
    compile: Callable[[], Any] = lambda: None
    """runs in a thread with others"""
    per_call: int = 1
    """operations per call; the times are per operation"""
    series: int = 1
    """least calls per sample, with one wait after the last"""
    free: Callable[[], None] = lambda: None


def jitted(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    carried: Mapping[int, int] | None = None,
    per_call: int = 1,
    make: Callable[[], Sequence[Any]] | None = None,
) -> Prepared:
    """Prepare a jitted function on arrays; `carried` arguments are donated and replaced by a result.

    Traced here, in the caller's context; compiled later. With `make`, which makes the arrays before the first
    call, the arguments are only shapes.
    """
    carried = dict(carried or {})
    lowered = jax.jit(function, donate_argnums=tuple(carried)).lower(*arguments)
    current: list[Any] = []
    compiled: list[Any] = []

    def call() -> Any:
        if not current:
            found = arguments if make is None else make()
            copied = () if make else carried
            current.extend(jax.tree.map(jax.numpy.copy, x) if i in copied else x for i, x in enumerate(found))
        results = compiled[0](*current)
        for argument, result in carried.items():
            current[argument] = results[result]
        return results

    def free() -> None:
        current.clear()
        compiled.clear()

    return Prepared(call, lambda: compiled.append(lowered.compile()), per_call, free=free)


TOGETHER = "compiling together"
"""Reported where any of the compilations may have ended the process."""


class Comparison:
    """Candidates of one step, traced and compiling in threads."""

    def __init__(self, session: Session, step: str, candidates: Sequence[Candidate], pool: Executor):
        """Trace and submit all."""
        self.step, self.candidates = step, candidates
        self.ready: dict[str, Prepared] = {}
        self.compiling: dict[str, Future[Any]] = {}
        for candidate in candidates:
            name = candidate.name
            if session.broken(name, step):
                continue
            with session.guarded(step, name, candidate.ours, runs=False):
                prepared = candidate.prepare()
                self.ready[name], self.compiling[name] = prepared, pool.submit(prepared.compile)

    def measure(self, session: Session, **facts: Any) -> None:
        """Time the candidates in turns; add a row for each, with the ratio to the first one's time."""
        step, ready = self.step, self.ready
        for candidate in self.candidates:
            future = self.compiling.get(candidate.name)
            if future is not None and (error := future.exception()) is not None:
                ready.pop(candidate.name).free()
                session.fail(step, candidate.name, one_line(error), candidate.ours)
        timings = self._warm_up(session)
        session.begin(step)
        for turn in range(SAMPLES):
            for name in in_turn(list(timings), turn):
                timing, wanted = timings[name]
                if turn < wanted:
                    timing.samples.append(timing.timed(ready[name].call, timing.calls))
        found = {name: timing.statistics() for name, (timing, _) in timings.items()}
        medians = {name: columns["seconds"] for name, columns in found.items()}
        first = medians.get(self.candidates[0].name)
        for candidate in self.candidates:
            if (name := candidate.name) in medians:
                median = medians[name]
                columns = found[name] | {
                    "ratio_to_first": None if first is None else median / first,
                    "bound_fraction": None if candidate.bound is None else candidate.bound / median,
                }
                columns |= {column: amount / median for column, amount in candidate.amounts.items()}
                session.add(step=step, what=name, status="measured", **columns, **facts, **candidate.facts)
                ready[name].free()
        if medians:
            shown = ", ".join(f"{n} {1e3 * s:.4g}" for n, s in sorted(medians.items(), key=lambda x: x[1]))
            session.say(f"{step}: ms: {shown}")

    def _warm_up(self, session: Session) -> dict[str, tuple[Timing, int]]:
        """Call each twice; return the timing of those that run, and how many samples to take."""
        timings: dict[str, tuple[Timing, int]] = {}
        expected: list[Any] = []
        for candidate in self.candidates:
            name, prepared = candidate.name, self.ready.get(candidate.name)
            if prepared is None:
                continue
            with session.guarded(self.step, name, candidate.ours):
                if candidate.judge is not None:
                    session.add(step=self.step, what=name, **candidate.judge())
                    continue
                # The first call also makes the arrays and loads the program.
                result = jax.block_until_ready(prepared.call())
                if candidate.agreement is not None:
                    _expect_agreement(expected, result, candidate.agreement)
                del result  # the next call may take its buffers
                timing = Timing(math.inf, wait=jax.block_until_ready)
                seconds = timing.timed(prepared.call)
                if seconds < SHORT_SECONDS:
                    seconds = timing.timed(prepared.call, WARM_CALLS)
                wanted, timing.calls = _turns(seconds, prepared.series, session)
                timing.per_call = prepared.per_call
                timings[name] = timing, wanted
            if name not in timings:
                self.ready.pop(name).free()
        return timings


def _expect_agreement(expected: list[Any], result: Any, tolerance: float) -> None:
    """Compare results with the first ones, which are kept in `expected`."""
    found = [np.asarray(x.astype(jnp.float32)) for x in jax.tree.leaves(result)]
    expected[:] = expected or found
    if (off := max(map(error, expected, found))) > tolerance:
        raise ValueError(f"results differ by {off:.2g} of the largest")


def begin(session: Session, waiting: Sequence[Step]) -> dict[str, Comparison]:
    """Compile the candidates of the next steps that compare some, all of them before the first is timed.

    Only those of the first step, which is then to blame, if compiling several ended an earlier process.
    """
    begun: dict[str, Comparison] = {}
    alone = session.broken(TOGETHER)
    session.begin(waiting[0].name, "all" if alone else TOGETHER, ours=alone)
    with ThreadPoolExecutor(COMPILERS) as pool:
        for step in waiting[: 1 if alone else waiting[0].together]:
            if step.candidates is None or session.broken("all", step.name):
                break
            with session.guarded(step.name, "all", runs=False):
                begun[step.name] = Comparison(session, step.name, step.candidates(session), pool)
        session.alive(COMPILE_SECONDS)
    return begun


def _turns(seconds: float, series: int, session: Session) -> tuple[int, int]:
    """Return samples, and calls per sample, at least `series`, for a call of so many seconds."""
    if session.quick:
        return 1, 1
    calls = max(series, calls_per_sample(seconds, most=200))
    fitting = int(LONGEST_SECONDS / max(seconds * calls, 1e-9))
    return max(2 if seconds > SLOW_SECONDS else 3, min(SAMPLES, fitting)), calls


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
        if session.left() <= step.least:
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
                        begun = begin(session, waiting[position:])
                    if step.name in begun:  # it is deleted with its arrays before the next ones begin
                        begun.pop(step.name).measure(session, **step.facts)
        session.add(step=step.name, what="all", status=DONE)
        session.say(f"{step.name}: done in {session.elapsed - before:.1f} s")
    session.add(step="all", what="all", status=COMPLETE)
