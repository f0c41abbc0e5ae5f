"""Sections `kernels` and `tuning`: each kernel of Taylor attention alone, and its block sizes.

The calls are those of the kernels' catalogue, on the reference case; the states that a kernel reads are
synthetic, since its time does not depend on them.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from benchmarks import io_model
from benchmarks.gpu_sections.device import rates
from benchmarks.gpu_sections.session import Session, Step
from benchmarks.gpu_sections.stopwatch import Candidate, compare, jitted
from benchmarks.io_model import Sizes
from pallas_kernels.case import Case
from pallas_kernels.comparison import example
from pallas_kernels.taylor_attention import cases

BLOCK = 4096
"""Tokens per program where a kernel needs more than one block."""

COSTS = {
    "key_sums": io_model.key_sums,
    "query_sums": io_model.query_sums,
    "scan": io_model.scan,
    "outputs": io_model.outputs,
    "dq": io_model.dq,
    "dk": io_model.dk,
    "dv": io_model.dv,
}

WALKS = ("outputs", "dq", "dk", "dv")
"""Kernels that can run with one block per row and head, and whose block sizes matter most."""


def steps(session: Session) -> list[Step]:
    """List each kernel with one block per row and head, if it can, and with blocks of `BLOCK`."""
    names = ("key_sums", "dv", "scan") if session.sizing.quick else tuple(COSTS)
    pairs = [(name, block) for name in names for block in (None, BLOCK) if block or name in WALKS]
    return [Step(_step_name(*pair), partial(_kernel, *pair)) for pair in pairs]


def tuning_steps(session: Session) -> list[Step]:
    """List the candidates of each kernel, compared with each other."""
    names = WALKS[:1] if session.sizing.quick else WALKS
    return [Step(f"{name} candidates", partial(_tune, name)) for name in names]


def _step_name(name: str, block: int | None) -> str:
    return f"{name} {'blocks' if block else 'serial'}"


def _sizes(session: Session, block: int | None) -> Sizes:
    if session.sizing.quick:
        return Sizes(1, 130, 1, block=block and 64)
    reference = io_model.REFERENCE
    return Sizes(reference.batch, reference.length, reference.heads, block=block)


def catalogue(name: str, sizes: Sizes) -> Sequence[Case]:
    """Return the kernel's case of the catalogue with these sizes, then with its other block sizes."""
    own = cases.Sizes(sizes.batch, sizes.length, sizes.heads, sizes.block or sizes.length)
    shape = (sizes.key_size, sizes.value_size, "bfloat16")
    found = next(case for case in cases.cases([shape], own) if case.kernel == name)
    return [found, *(case for case in cases.candidates(found, own) if case.variant != found.variant)]


def _candidate(
    session: Session, case: Case, arguments: Sequence[jax.Array], sizes: Sizes, name: str, ours: bool
) -> Candidate:
    bound = rates(session).bound(COSTS[case.kernel](sizes))
    facts = {"variant": vars(case.variant)}
    return Candidate(name, lambda: jitted(case.function, arguments), facts, bound, ours)


def _kernel(name: str, block: int | None, session: Session) -> None:
    sizes = _sizes(session, block)
    case = catalogue(name, sizes)[0]
    row = _candidate(session, case, example(case.arguments), sizes, name, ours=True)
    compare(session, _step_name(name, block), [row], **_facts(sizes))


def _tune(name: str, session: Session) -> None:
    sizes = _sizes(session, None)
    default, *others = catalogue(name, sizes)
    arguments = example(default.arguments)
    rows = [
        _candidate(session, case, arguments, sizes, str(case.variant), ours=case is default)
        for case in [default, *others[: 1 if session.sizing.quick else None]]
    ]
    compare(session, f"{name} candidates", rows, **_facts(sizes))


def _facts(sizes: Sizes) -> dict[str, Any]:
    return {"batch": sizes.batch, "length": sizes.length, "heads": sizes.heads, "block": sizes.block}
