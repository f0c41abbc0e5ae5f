"""Classify the operations of a compiled program, read from its HLO text."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

KINDS = (
    ("products", {"dot", "convolution"}),
    ("gathers and scatters", {"gather", "scatter"}),
    ("windowed reductions", {"reduce-window"}),
    ("exponentials", {"exponential", "log", "tanh", "logistic", "erf", "power", "cosine", "sine"}),
    ("reductions", {"reduce"}),
    ("pads and concatenations", {"pad", "concatenate"}),
    ("updates of slices", {"dynamic-update-slice"}),
    ("copies and transposes", {"copy", "transpose"}),
)
"""Kind -> opcodes that an operation must contain; the first match counts."""

ELEMENTWISE = "elementwise"


class Operation(NamedTuple):
    """An instruction that the program runs."""

    kind: str
    name: str
    """path of the JAX function that it comes from; empty if XLA made it"""
    is_split: bool
    """whether XLA divides it among several cores, or leaves that to its matrix-product library"""


_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r" ([a-z][a-z\-]*)\(")
_NAME = re.compile(r'op_name="([^"]*)"')
_OPERAND = re.compile(r"%([\w.\-]+)")


class _Instruction(NamedTuple):
    name: str
    opcode: str
    path: str
    text: str


def operations(text: str) -> dict[str, Operation]:
    """Return name of each instruction -> its operation; fusions and calls are classified by their content."""
    computations: dict[str, list[_Instruction]] = {}
    current: list[_Instruction] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[1], [])
        elif found := _LINE.match(line):
            opcode, path = _OPCODE.search(" " + found[2]), _NAME.search(found[2])
            current.append(
                _Instruction(found[1], opcode[1] if opcode else "", path[1] if path else "", found[2])
            )

    def inside(instruction: _Instruction) -> list[_Instruction]:
        called = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", instruction.text)
        is_region = instruction.opcode in ("fusion", "call")
        return computations.get(called[1], []) if called and is_region else [instruction]

    return {
        instruction.name: Operation(
            _kind({part.opcode for part in inside(instruction)}),
            _path(instruction, inside, {each.name: each for each in block}, block),
            "outer_dimension_partitions" in instruction.text or instruction.opcode == "dot",
        )
        for block in computations.values()
        for instruction in block
    }


def _path(
    instruction: _Instruction,
    inside: Callable[[_Instruction], list[_Instruction]],
    known: dict[str, _Instruction],
    block: Iterable[_Instruction],
) -> str:
    """Return the path of an instruction, else of its content, its operands or its users."""
    if instruction.path:
        return instruction.path
    operands = [known[name] for name in _OPERAND.findall(instruction.text) if name in known]
    mention = re.compile(rf"%{re.escape(instruction.name)}[,)\s]")
    if path := next((part.path for part in reversed(inside(instruction)) if part.path), ""):
        return path
    users = [each for each in block if each is not instruction and mention.search(each.text)]
    return next((each.path for each in (*users, *operands) if each.path), "")


def _kind(opcodes: set[str]) -> str:
    return next((kind for kind, wanted in KINDS if opcodes & wanted), ELEMENTWISE)
