"""Find copies in a compiled program: arrays moved without change, which donation and layouts avoid."""

from collections.abc import Iterator

from benchmarks.gpu.static.cost import FUSIONS
from benchmarks.gpu.static.hlo import Computation, Instruction, Program

COPIES = frozenset({"copy", "copy-start"})

MOVES = frozenset({"parameter", "bitcast", "reshape", "copy", "tuple"})
"""Opcodes of a fusion that only copies."""


def copies(program: Program, least: float) -> list[Instruction]:
    """Return the launches of a program, also in loops and branches, that only copy at least so many bytes."""
    return [x for x in _launches(program, program.computations[program.entry]) if _copies(program, x, least)]


def _launches(program: Program, where: Computation) -> Iterator[Instruction]:
    for x in where.instructions:
        yield x
        if x.opcode in ("while", "call", "conditional", "async-start"):
            for name in x.called:
                yield from _launches(program, program.computations[name])


def _copies(program: Program, x: Instruction, least: float) -> bool:
    if x.bytes < least:
        return False
    if x.opcode in FUSIONS:
        inside = {each.opcode for each in program.computations[x.called[0]].instructions}
        return "copy" in inside and inside <= MOVES
    return x.opcode in COPIES
