"""Sections `forward`, `backward`, `wide`: causal attention by length, batch and channels of the values."""

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.gpu.io_model import Sizes
from benchmarks.gpu.sections import candidates
from benchmarks.gpu.sections.candidates import FORWARD, FORWARD_BACKWARD
from benchmarks.gpu.sections.session import Session, Step
from benchmarks.gpu.sections.stopwatch import Candidate

HEADS = 16

TARGETS = ((4, 8192), (16, 32768), (1, 32768))
"""(batch, length) that have a target."""

SWEEP = (
    *((batch, 1024) for batch in (1, 4, 16, 64)),
    (16, 2048),
    *((4, 1024 * 2**i) for i in (1, 2, 4, 5, 6)),
    *((batch, 1024) for batch in (2, 8, 32)),
)
"""Based, Figure 5: batch at 1,024 tokens, then length at batch 4; the least informative come last."""

WIDE = tuple(
    (batch, length, width) for width in (112, 128) for batch in (16, 4, 1) for length in (16384, 1024)
)
"""(batch, length, channels of the values) at which our kernels are compared with each other."""


def forward_steps(session: Session) -> list[Step]:
    """List a step per size."""
    return _steps(session, FORWARD)


def backward_steps(session: Session) -> list[Step]:
    """List a step per size, with gradients."""
    return _steps(session, FORWARD_BACKWARD)


def wide_steps(session: Session) -> list[Step]:
    """Compare our kernels where values have more than 64 channels."""
    sizes = ((1, 130, 112),) if session.quick else WIDE
    return [_step(session, size, _portable_and_hopper, value_size=size[2]) for size in sizes]


def _steps(session: Session, direction: str) -> list[Step]:
    sizes = ((1, 130),) if session.quick else (*TARGETS, *SWEEP)
    return [_step(session, size, partial(candidates.attention, direction)) for size in sizes]


def _step(session: Session, size: Sequence[int], rows: Callable[..., list[Candidate]], **facts: int) -> Step:
    sizes = Sizes(size[0], size[1], 1 if session.quick else HEADS, **facts)
    name = " ".join([f"B{sizes.batch} N{sizes.length}", *(f"V{width}" for width in size[2:])])
    facts = {"batch": sizes.batch, "length": sizes.length, "heads": sizes.heads} | facts
    return Step(name, candidates=partial(rows, sizes), facts=facts)


def _portable_and_hopper(sizes: Sizes, session: Session) -> list[Candidate]:
    names = ("pallas", "mosaic")
    return [row for row in candidates.attention(FORWARD, sizes, session) if row.name in names]
