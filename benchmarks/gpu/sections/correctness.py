"""Sections `correctness` and `mosaic`: run every check of `checks`; a failure does not stop the others."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

import pallas_kernels
from benchmarks.gpu.sections.candidates import require
from benchmarks.gpu.sections.checks import Check, Program, checks, mosaic_twins, triton_twins
from benchmarks.gpu.sections.large_checks import large_checks
from benchmarks.gpu.sections.session import Session, Step, UnavailableError

QUICK = (2, 3, 4)
"""The checks that the interpreter compiles in seconds: each op once."""

HEADLINE = 7
"""Checks that come before everything else: each op's most used variants."""

AHEAD = 12
"""Checks that are traced and compiled in threads while an earlier one runs: that takes most of the time."""

TOGETHER = "all, while others compile"
"""Reported where another check's compilation may have ended the process."""


def steps(session: Session) -> list[Step]:
    """List a step per check, the most used first."""
    every, large = checks(), large_checks()
    if session.sizing.quick:
        every, large = [every[i].tiny() for i in QUICK], [check.tiny() for check in large]
    return _steps(session, [*every, *triton_twins(), *large], HEADLINE)


def mosaic_steps(session: Session) -> list[Step]:
    """List a step per check of the Mosaic kernels, on a GPU: their interpreter takes minutes."""
    if pallas_kernels.is_interpreted():
        raise UnavailableError("the interpreter takes minutes; tests/kernels/test_mosaic_taylor.py runs it")
    return _steps(session, mosaic_twins())


def _steps(session: Session, every: Sequence[Check], urgent: int | None = None) -> list[Step]:
    """List a step per check; the first `urgent` ones, or all, come before what has been measured earlier."""
    names = [check.name for check in every]
    blamed = [name for name in names if session.broken(name, TOGETHER)]
    first, steps = every[:urgent], list[Step]()
    for group in (first, every[len(first) :]):  # other steps run between them
        compiler = _Compiler(group, 0 if blamed else AHEAD)
        steps += [Step(x.name, partial(_check, x, compiler), urgent=group is first) for x in group]
    return steps


class _Compiler:
    """Trace the next checks in one thread and compile them in others; one by one with `ahead` 0.

    One thread traces them in their order, so that none waits for a later one: jax-triton compiles its kernels
    in this thread.
    """

    def __init__(self, every: Sequence[Check], ahead: int):
        self.ahead = ahead
        self._every = list(every)
        self._tracer, self._pool = ThreadPoolExecutor(1), ThreadPoolExecutor(max(1, ahead))
        self._begun: dict[str, Future[tuple[Program, Future[Any]]]] = {}

    def begun(self, check: Check) -> Future[tuple[Program, Future[Any]]]:
        """Return, in the future, a check's traced program and its compilation."""
        first = self._every.index(check)
        for other in self._every[first : first + 1 + self.ahead]:
            if other.name not in self._begun:
                # The context says whether kernels are interpreted.
                self._begun[other.name] = self._tracer.submit(copy_context().run, self._begin, other)
        return self._begun.pop(check.name)

    def _begin(self, check: Check) -> tuple[Program, Future[Any]]:
        _expect_available(check)
        program = check.program()
        return program, self._pool.submit(program.lowered.compile)


def _expect_available(check: Check) -> None:
    for twin in ("mosaic", "triton"):
        if twin in check.name.split():
            require("taylor_attention", twin)


def _check(check: Check, compiler: _Compiler, session: Session) -> None:
    if compiler.ahead:
        session.running(check.name, TOGETHER)
    traced = compiler.begun(check)
    session.wait([traced])
    program, compiling = traced.result()
    session.wait([compiling])
    outcome = program.judge(compiling.result())
    session.add(
        step=check.name,
        what="check",
        status="wrong" if outcome.problem else "passed",
        reason=outcome.problem or None,
        errors={name: float(e) for name, e in outcome.errors.items()},
        tolerance=outcome.tolerance,
        deterministic=outcome.deterministic,
    )
    worst = max(outcome.errors.values())
    session.say(f"{check.name}: largest error {worst:.1e}, {outcome.problem or 'passed'}")
