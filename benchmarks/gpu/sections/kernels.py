"""Section `kernels`: each kernel of Taylor attention alone.

The calls are those of the kernels' catalogue, on the reference case; the states that a kernel reads are
synthetic, since its time does not depend on them.
"""

from functools import partial

from benchmarks.gpu import io_model
from benchmarks.gpu.cases import taylor_attention as cases
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.comparison import example
from benchmarks.gpu.io_model import Sizes
from benchmarks.gpu.sections.device import rates
from benchmarks.gpu.sections.session import Session, Step
from benchmarks.gpu.sections.stopwatch import Candidate, jitted

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
"""Kernels that can run with one block per row and head."""


def steps(session: Session) -> list[Step]:
    """List each kernel with one block per row and head, if it can, and with blocks of `BLOCK`."""
    names = ("key_sums", "dv", "scan") if session.sizing.quick else tuple(COSTS)
    return [
        _step(session, name, block) for name in names for block in (None, BLOCK) if block or name in WALKS
    ]


def _step(session: Session, name: str, block: int | None) -> Step:
    sizes = _sizes(session, block)
    facts = {"batch": sizes.batch, "length": sizes.length, "heads": sizes.heads, "block": sizes.block}
    step = f"{name} {'blocks' if block else 'serial'}"
    return Step(step, candidates=partial(_candidates, name, sizes), facts=facts)


def _sizes(session: Session, block: int | None) -> Sizes:
    if session.sizing.quick:
        return Sizes(1, 130, 1, block=block and 64)
    reference = io_model.REFERENCE
    return Sizes(reference.batch, reference.length, reference.heads, block=block)


def catalogue(name: str, sizes: Sizes) -> Case:
    """Return the kernel's case of the catalogue with these sizes."""
    own = cases.Sizes(sizes.batch, sizes.length, sizes.heads, sizes.block or sizes.length)
    shape = (sizes.key_size, sizes.value_size, "bfloat16")
    return next(case for case in cases.cases([shape], own) if case.kernel == name)


def _candidates(name: str, sizes: Sizes, session: Session) -> list[Candidate]:
    case, bound = catalogue(name, sizes), rates(session).bound(COSTS[name](sizes))
    prepare = partial(jitted, case.function, case.arguments, make=partial(example, case.arguments))
    return [Candidate(name, prepare, {"variant": vars(case.variant)}, bound, ours=True)]
