"""Sections `forward`, `backward`, `blocks`, `mosaic_forward`: causal attention by length, batch and block."""

from functools import partial

import pallas_kernels
from benchmarks import io_model
from benchmarks.gpu_sections import candidates
from benchmarks.gpu_sections.candidates import FORWARD, FORWARD_BACKWARD
from benchmarks.gpu_sections.device import rates
from benchmarks.gpu_sections.session import Session, Step, UnavailableError
from benchmarks.gpu_sections.stopwatch import Candidate, compare, jitted
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


def mosaic_steps(session: Session) -> list[Step]:
    """List a step per size: the portable forward pass against that of Hopper's own instructions."""
    if pallas_kernels.is_interpreted():
        raise UnavailableError("the interpreter takes minutes; tests/kernels/test_mosaic_taylor.py runs it")
    return [Step(_name(*size), partial(_compare_backends, *size)) for size in (*TARGETS, *SWEEP)]


def block_steps(session: Session) -> list[Step]:
    """Compare block lengths with each other."""
    sizes = ((1, 32768), (4, 32768)) if not session.sizing.quick else ((1, 130),)
    return [Step(_name(*size), partial(_blocks, *size)) for size in sizes]


def _steps(session: Session, direction: str) -> list[Step]:
    sizes = ((1, 130),) if session.sizing.quick else (*TARGETS, *SWEEP)
    return [Step(_name(*size), partial(_compare, *size, direction)) for size in sizes]


def _name(batch: int, length: int) -> str:
    return f"B{batch} N{length}"


def _sizes(session: Session, batch: int, length: int) -> Sizes:
    return Sizes(batch, length, 1 if session.sizing.quick else HEADS)


def _compare(batch: int, length: int, direction: str, session: Session) -> None:
    sizes = _sizes(session, batch, length)
    rows = candidates.attention(session, sizes, direction, rates(session))
    compare(session, _name(batch, length), rows, batch=batch, length=length, heads=sizes.heads)


def _compare_backends(batch: int, length: int, session: Session) -> None:
    sizes = _sizes(session, batch, length)
    rows = candidates.backends(sizes, rates(session))
    compare(session, _name(batch, length), rows, batch=batch, length=length, heads=sizes.heads)


def _blocks(batch: int, length: int, session: Session) -> None:
    sizes = _sizes(session, batch, length)
    q, k, v, _ = candidates.arrays(sizes, sizes.key_size)
    lengths = (64, None) if session.sizing.quick else BLOCKS

    def row(block: int | None) -> Candidate:
        function = partial(pallas_kernels.taylor_attention, block=block or length)
        cost = io_model.forward(Sizes(**{**vars(sizes), "block": block}))
        name = "serial" if block is None else f"block {block}"
        return Candidate(
            name, lambda: jitted(function, [q, k, v]), {"block": block}, rates(session).bound(cost), ours=True
        )

    rows = [row(block) for block in lengths]
    default = Candidate("default", lambda: jitted(pallas_kernels.taylor_attention, [q, k, v]), ours=True)
    compare(session, _name(batch, length), [default, *rows], batch=batch, length=length, heads=sizes.heads)
