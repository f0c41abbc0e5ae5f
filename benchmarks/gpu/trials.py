"""Measure candidates against the current choice of their case, saving each result before the next begins.

The candidates of a batch compile side by side, then each is measured alone. The report's `running` lists what
is in flight: if the process ends, the next one leaves out a candidate that was alone, and takes several
(`suspects`) one at a time.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from based_jax.command import one_line
from benchmarks.gpu import comparison, journal
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.journal import BROKE
from benchmarks.timing import calls_per_sample, in_turn, seconds_per_call

MEASURED, REFUSED, BROKEN = "measured", "refused", "broken"
"""Status of a row: has a time; does not run or has wrong results; ended the process."""

STATE = {"running": [], "suspects": []}
"""Additional keys of a report: candidates in flight; those in flight when an earlier process ended."""

TOGETHER = 8
"""Candidates of a case that compile at a time, before they are measured."""

SAMPLES = 10
"""Samples of each candidate, at least 20 ms each; the median counts."""

UPDATE_SECONDS, COMPILE_SECONDS = 20.0, 60.0
"""How often the report is written while candidates compile, and for how long; kernels take seconds."""


class Trials:
    """A run over the candidates of cases, until `ends` (seconds since 1970)."""

    def __init__(self, report: dict[str, Any], path: Path, ends: float, log: Callable[[str], None]):
        self.report, self.path, self.ends, self.log = report, path, ends, log
        self._rows = {(row["case"], row["candidate"]): row for row in report["rows"]}
        self._programs: dict[str, Future[Any]] = {}

    def run(self, listed: Sequence[Sequence[Case]]) -> bool:
        """Measure until all is done or time runs out; return whether all is done.

        Args:
            listed: the candidates of each case, the current choice first.

        Raises:
            DeviceLostError: only a new process can continue.
        """
        self._after_a_crash({_key(case): case for cases in listed for case in cases})
        for current, batch in batches(listed):
            waiting = [case for case in batch if _key(case) not in self._rows]
            alone = any(list(_key(case)) in self.report["suspects"] for case in waiting)
            for together in [[case] for case in waiting] if alone else [waiting]:
                if together and not self._measure(current, together):
                    return False
        return True

    def _after_a_crash(self, known: dict[tuple[str, str], Case]) -> None:
        broken = [tuple(key) for key in self.report["running"]]
        if len(broken) == 1 and broken[0] in known:
            self._keep(known[broken[0]], status=BROKEN, reason=BROKE)
        self.report |= {"running": [], "suspects": [*self.report["suspects"], *map(list, broken)]}

    def _measure(self, current: Case, cases: Sequence[Case]) -> bool:
        """Compile these candidates of a case side by side, then measure each; return False without time."""
        if time.time() >= self.ends:
            return False
        if not self._lacks_reference(current):
            if len(cases) == 1:  # maybe a suspect: it must be alone in flight
                self._compile([current])
            self._compile([current, *cases])
        arrays, carried = comparison.example(current.arguments, current.fill), catalog.carried(current)
        expected = None
        for case in cases:
            if time.time() >= self.ends:
                return False
            if self._lacks_reference(current):
                reason = "nothing to compare with: the current choice does not run"
                self._keep(case, status=REFUSED, reason=reason)
                continue
            self._running([case])
            try:
                program, reference = self._programs[case.name].result(), self._programs[current.name].result()
                if expected is None:
                    expected = comparison.once(reference, arrays, carried)
                result = comparison.once(program, arrays, carried)
                found = comparison.disagreement(expected, result)
                if found > comparison.AGREEMENT:
                    raise ValueError(f"results differ by {found:.2g} of the largest")
                programs = [reference] if case is current else [reference, program]
                times = measure([comparison.repeatedly(each, arrays, carried) for each in programs])
            except Exception as error:  # it does not fit this GPU; others may
                journal.check_device(error)
                self._keep(case, status=REFUSED, reason=one_line(error)[:500])
            else:
                self._keep(case, status=MEASURED, seconds=times[-1], reference_seconds=times[0])
        self._programs = {name: program for name, program in self._programs.items() if name == current.name}
        return True

    def _lacks_reference(self, current: Case) -> bool:
        row = self._rows.get(_key(current))
        return row is not None and row["status"] != MEASURED

    def _compile(self, cases: Sequence[Case]) -> None:
        """Trace each here and compile all in threads; an error is raised where the program is used."""
        cases = [case for case in cases if case.name not in self._programs]
        self._running(cases)
        pool = ThreadPoolExecutor(TOGETHER)
        for case in cases:
            carried = tuple(catalog.carried(case))
            try:
                lowered = jax.jit(case.function, donate_argnums=carried).lower(*case.arguments)
                self._programs[case.name] = pool.submit(lowered.compile)
            except Exception as error:  # tracing and lowering raise all kinds
                self._programs[case.name] = Future()
                self._programs[case.name].set_exception(error)
        ends = time.monotonic() + COMPILE_SECONDS
        while wait([self._programs[case.name] for case in cases], UPDATE_SECONDS).not_done:
            if time.monotonic() < ends:
                journal.save(self.report, self.path)  # an update for the supervisor, which else ends this
        pool.shutdown()

    def _running(self, cases: Sequence[Case]) -> None:
        self.report["running"] = [list(_key(case)) for case in cases]
        journal.save(self.report, self.path)

    def _keep(self, case: Case, **found: Any) -> None:
        """Add a row and save."""
        row = {**columns(case), **found}
        self.report["rows"].append(row)
        self._rows[_key(case)] = row
        self._running([])
        what = found.get("reason")
        if what is None:
            what = f"{1e6 * row['seconds']:.1f} us, {row['seconds'] / row['reference_seconds']:.2f}x"
        self.log(f"{row['case']}: {what}  {row['candidate']}")


def columns(case: Case) -> dict[str, Any]:
    """Return what a row has of its candidate."""
    name, candidate = _key(case)
    facts = {"op": case.op, "when": catalog.facts(case), "variant": asdict(case.variant)}
    return {"case": name, "candidate": candidate, **facts}


def measure(calls: Sequence[Any]) -> list[float]:
    """Return the median seconds of each call; they take turns, so that all see the same clocks and load."""
    counts = []
    for call in calls:
        seconds_per_call(call, jax.block_until_ready, 1)  # warms up
        counts.append(calls_per_sample(seconds_per_call(call, jax.block_until_ready, 3), most=10_000))
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(SAMPLES):
        for i in in_turn(range(len(calls)), turn):
            samples[i].append(seconds_per_call(calls[i], jax.block_until_ready, counts[i]))
    return [statistics.median(taken) for taken in samples]


def batches(listed: Sequence[Sequence[Case]]) -> Iterator[tuple[Case, list[Case]]]:
    """Yield a case's current choice and up to `TOGETHER` candidates: for all cases those that differ from it
    in at most one field, then those that differ in two, and so on."""
    most = max((_changes(case, cases[0]) for cases in listed for case in cases), default=0)
    for changes in range(1, most + 1):
        for current, *others in listed:
            chosen = [case for case in others if _changes(case, current) == changes]
            chosen = [current] * (changes == 1) + chosen
            for first in range(0, len(chosen), TOGETHER):
                yield current, chosen[first : first + TOGETHER]


def _changes(case: Case, current: Case) -> int:
    """Return the number of fields in which the variants of two candidates differ."""
    pairs = zip(asdict(case.variant).values(), asdict(current.variant).values(), strict=True)
    return sum(one != other for one, other in pairs)


def _key(case: Case) -> tuple[str, str]:
    return f"{case.op}/{case.kernel} {case.shape}", str(case.variant)
