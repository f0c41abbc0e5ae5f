"""Sections `forward`, `backward`, `blocks`: causal attention by length, batch and block."""

from collections.abc import Callable
from functools import partial

import pallas_kernels
from benchmarks import io_model
from benchmarks.gpu_sections import candidates
from benchmarks.gpu_sections.candidates import FORWARD, FORWARD_BACKWARD
from benchmarks.gpu_sections.device import rates
from benchmarks.gpu_sections.session import Session, Step
from benchmarks.gpu_sections.stopwatch import Candidate, jitted
from benchmarks.io_model import Sizes

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

BLOCKS = (512, 1024, 2048, 4096, None)
"""Tokens per program at B = 1, N = 32768; None is the serial walk."""


def forward_steps(session: Session) -> list[Step]:
    """List a step per size."""
    return _steps(session, FORWARD)


def backward_steps(session: Session) -> list[Step]:
    """List a step per size, with gradients."""
    return _steps(session, FORWARD_BACKWARD)


def block_steps(session: Session) -> list[Step]:
    """Compare block lengths with each other."""
    sizes = ((1, 32768), (4, 32768)) if not session.sizing.quick else ((1, 130),)
    return [_step(session, size, _blocks) for size in sizes]


def _steps(session: Session, direction: str) -> list[Step]:
    sizes = ((1, 130),) if session.sizing.quick else (*TARGETS, *SWEEP)
    return [_step(session, size, partial(candidates.attention, direction)) for size in sizes]


def _step(session: Session, size: tuple[int, int], rows: Callable[..., list[Candidate]]) -> Step:
    sizes = Sizes(*size, 1 if session.sizing.quick else HEADS)
    facts = {"batch": sizes.batch, "length": sizes.length, "heads": sizes.heads}
    name, urgent = f"B{sizes.batch} N{sizes.length}", size in TARGETS
    return Step(name, candidates=partial(rows, sizes), facts=facts, urgent=urgent)


def _blocks(sizes: Sizes, session: Session) -> list[Candidate]:
    found = rates(session)
    inputs = candidates.Inputs(sizes, sizes.key_size, 3)

    def row(name: str, **block: int) -> Candidate:
        function = partial(pallas_kernels.taylor_attention, **block)
        prepare = partial(jitted, function, inputs.shapes, make=inputs.arrays)
        length = block.get("block")
        cost = io_model.forward(Sizes(**{**vars(sizes), "block": None if name == "serial" else length}))
        return Candidate(name, prepare, block, found.bound(cost) if block else None, ours=True)

    lengths = (64, None) if session.sizing.quick else BLOCKS
    named = {"serial" if n is None else f"block {n}": n or sizes.length for n in lengths}
    return [row("default"), *(row(name, block=length) for name, length in named.items())]
