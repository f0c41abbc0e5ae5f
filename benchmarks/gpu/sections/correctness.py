"""Sections `correctness` and `mosaic`: run every check of `checks`; a failure does not stop the others."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax

import pallas_kernels
from benchmarks.gpu.sections.check_list import Addresses, checks, mosaic_twins, triton_twins
from benchmarks.gpu.sections.checks import Check
from benchmarks.gpu.sections.session import Session, Step, UnavailableError, require
from benchmarks.gpu.sections.stopwatch import COMPILERS, Candidate, Prepared

QUICK = (2, 3, 4)
"""The checks that the interpreter compiles in seconds: each op once."""


def steps(session: Session) -> list[Step]:
    """List a step per check, the most used first."""
    every, large = checks(), Addresses()
    if session.quick:
        every, large = [every[i].tiny() for i in QUICK], large.tiny()
    return _steps([*every, *triton_twins(), large])


def mosaic_steps(session: Session) -> list[Step]:
    """List a step per check of the Mosaic kernels, on a GPU: their interpreter takes minutes."""
    if pallas_kernels.is_interpreted():
        raise UnavailableError("the interpreter takes minutes; tests/kernels/test_mosaic_taylor.py runs it")
    return _steps(mosaic_twins())


def _steps(every: Sequence[Check]) -> list[Step]:
    return [Step(check.name, candidates=partial(_rows, check), together=COMPILERS) for check in every]


def _rows(check: Check, session: Session) -> list[Candidate]:
    compiled: list[jax.stages.Compiled] = []

    def prepare() -> Prepared:
        words = check.name.split()
        if "mosaic" in words:
            require("taylor_attention", "mosaic")
        if "triton" in words:
            require("window_step" if words[0] == "window" else "taylor_step", "triton")
        program = check.program()
        judges.append(program.judge)
        return Prepared(list, lambda: compiled.append(program.lowered.compile()))

    def judge() -> Mapping[str, Any]:
        outcome = judges[0](compiled[0])
        worst = max(outcome.errors.values())
        session.say(f"{check.name}: largest error {worst:.1e}, {outcome.problem or 'passed'}")
        return {
            "status": "wrong" if outcome.problem else "passed",
            "reason": outcome.problem or None,
            "errors": {name: float(e) for name, e in outcome.errors.items()},
            "tolerance": outcome.tolerance,
            "deterministic": outcome.deterministic,
        }

    judges: list[Any] = []
    return [Candidate("check", prepare, judge=judge, ours=True)]
