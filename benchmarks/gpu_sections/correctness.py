"""Section `correctness`: every check of `checks`, errors and bits, none stopping the others."""

from functools import partial

import pallas_kernels
from benchmarks.gpu_sections.checks import Check, checks, mosaic_twins, triton_twins
from benchmarks.gpu_sections.contestants import require
from benchmarks.gpu_sections.session import Session, Step

QUICK = (2, 3, 4)
"""Of the list of checks, those that the interpreter compiles in seconds: each op once."""


def steps(session: Session) -> list[Step]:
    """A step per check; with a GPU also the twins'."""
    every = checks()
    twins = triton_twins() + ([] if pallas_kernels.is_interpreted() else mosaic_twins())
    if session.sizing.quick:
        every = [every[i].tiny() for i in QUICK]
    return [Step(check.name, partial(_check, check)) for check in [*every, *twins]]


def _check(check: Check, session: Session) -> None:
    for twin in ("mosaic", "triton"):
        if twin in check.name.split():
            require("taylor_attention", twin)
    outcome = check.run()
    session.add(
        step=check.name, what="check", status="wrong" if outcome.problem else "passed",
        reason=outcome.problem or None, errors={name: float(e) for name, e in outcome.errors.items()},
        tolerance=outcome.tolerance, deterministic=outcome.deterministic,
    )  # fmt: skip
    worst = max(outcome.errors.values())
    session.say(f"{check.name}: largest error {worst:.1e}, {outcome.problem or 'passed'}")
