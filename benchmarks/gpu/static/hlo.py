"""Parse a compiled program as XLA prints it: computations and instructions, with what costs depend on."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_PARTS = re.compile(r" ([\w\-]+)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|body|to_apply|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")


@dataclass(frozen=True)
class Shape:
    """Shape and dtype of an array."""

    dtype: str
    """as XLA writes it: f32, bf16, pred"""
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Number of bytes; 0 if it is not an array (tokens)."""
        bits = re.search(r"\d+", self.dtype)
        return math.ceil(self.count * int(bits[0]) / 8) if bits else self.count * (self.dtype == "pred")


@dataclass(frozen=True)
class Instruction:
    """One line of a program."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    """shapes of the result: several for a tuple"""
    operands: tuple[str, ...]
    attributes: str
    """the text after the operands"""
    is_root: bool

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return sum(shape.bytes for shape in self.shapes)

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs, other than a loop's condition."""
        found = _CALLED.findall(self.attributes)
        return tuple(name for text in found for name in re.findall(r"[\w.\-]+", text))

    @cached_property
    def scope(self) -> str:
        """Origin of the line in the traced program: names of functions, modules and scopes."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @cached_property
    def trip_count(self) -> int | None:
        """Iterations of a loop; None if the compiler does not know them."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.attributes)
        return int(found[1]) if found else None

    def sizes(self, attribute: str) -> tuple[int, ...]:
        """Return a list of numbers in the attributes, such as ``lhs_contracting_dims={1,2}``."""
        found = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.attributes)
        return tuple(map(int, filter(None, found[1].split(",")))) if found else ()


@dataclass(frozen=True)
class Computation:
    """A function of the program."""

    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Name -> instruction."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose result is returned."""
        return next(x for x in self.instructions if x.is_root)

    @cached_property
    def parameters(self) -> list[Instruction]:
        """The arguments, in order."""
        found = [x for x in self.instructions if x.opcode == "parameter"]
        return sorted(found, key=lambda x: int(x.operands[0]))

    def operands(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions whose results it takes."""
        return (self.by_name[name] for name in instruction.operands if name in self.by_name)

    def users(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions that take its result."""
        return [x for x in self.instructions if instruction.name in x.operands]


@dataclass(frozen=True)
class Program:
    """Name -> computation, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str


def read(text: str) -> Program:
    """Parse the text of `jax.stages.Compiled.as_text`.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, name, lines = "", "", list[Instruction]()
    for line in text.splitlines():
        if (head := _COMPUTATION.match(line)) and "->" in line:
            name, lines = head[2], []
            entry = name if head[1] else entry
        elif line.startswith("}"):
            computations[name] = Computation(tuple(lines))
        elif found := _INSTRUCTION.match(line):
            lines.append(_instruction(found[2], found[3], is_root=bool(found[1])))
    if not entry:
        raise ValueError("the text of the program has no ENTRY computation")
    return Program(computations, entry)


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    """Parse ``SHAPE OPCODE(OPERANDS), ATTRIBUTES``."""
    shape, opcode, rest = _PARTS.split(text, maxsplit=1)
    inside, _, attributes = rest.partition("), ")
    operands = (inside.rstrip(")"),) if opcode == "parameter" else tuple(_OPERAND.findall(inside))
    shapes = tuple(
        Shape(dtype, tuple(int(n) for n in sizes.split(",") if n)) for dtype, sizes in _ARRAY.findall(shape)
    )
    return Instruction(name, opcode, shapes, operands, attributes, is_root)
