"""Trace circuits from plain functions: + - * on wires are recorded instead of computed.

    circuit = trace(lambda wires: [wires[0] * wires[1] + 3], variables=2)

The same function, called with numbers or arrays, computes directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from papers.zoology.circuits.circuit import Circuit, Node

T = TypeVar("T")
Tape = list[Node]


class Wire:
    """A value of the circuit that is being traced.

    Two constants make a constant; x + 0 and x * 1 are x, and x * 0 is 0. A difference x - y is x + -1 * y.
    """

    __array_ufunc__ = None  # NumPy's + and * with a wire call the wire's own

    def __init__(self, tape: Tape, index: int) -> None:
        self.tape, self.index = tape, index

    @property
    def constant(self) -> float | None:
        """The number of a constant wire, else None."""
        node = self.tape[self.index]
        return node.value if node.kind == "constant" else None

    def __add__(self, other: Any) -> Wire:
        other = _wire(self.tape, other)
        a, b = self.constant, other.constant
        if a is not None and b is not None:
            return _wire(self.tape, a + b)
        if a == 0 or b == 0:
            return other if a == 0 else self
        return _append(self.tape, Node("+", (self.index, other.index)))

    def __mul__(self, other: Any) -> Wire:
        other = _wire(self.tape, other)
        a, b = self.constant, other.constant
        if a is not None and b is not None:
            return _wire(self.tape, a * b)
        if a == 0 or b == 1:
            return self
        if b == 0 or a == 1:
            return other
        return _append(self.tape, Node("*", (self.index, other.index)))

    def __neg__(self) -> Wire:
        return self * -1

    def __sub__(self, other: Any) -> Wire:
        return self + _wire(self.tape, other) * -1

    def __rsub__(self, other: Any) -> Wire:
        return _wire(self.tape, other) - self

    __radd__, __rmul__ = __add__, __mul__


def trace(function: Callable[[list[Any]], Sequence[Any]], variables: int) -> Circuit:
    """Return the circuit, without gates that no output needs, of a function of n = `variables` wires.

    The function returns wires and numbers: the outputs.
    """
    tape = [Node("variable")] * variables
    wires = [Wire(tape, index) for index in range(variables)]
    outputs = [_wire(tape, output).index for output in function(wires)]
    return _needed(tape, outputs)


def tree(combine: Callable[[T, T], T], items: Sequence[T]) -> T:
    """Combine items in pairs, and the results in pairs, in order: ceil(log2(number of items)) levels."""
    while len(items) > 1:
        pairs = [combine(first, second) for first, second in zip(items[::2], items[1::2], strict=False)]
        items = pairs + list(items[len(items) - len(items) % 2 :])
    return items[0]


def total(terms: Sequence[Any]) -> Any:
    """Return the sum of at least one term, as a tree."""
    return tree(lambda first, second: first + second, terms)


def _wire(tape: Tape, value: Any) -> Wire:
    if isinstance(value, Wire):
        return value
    return _append(tape, Node("constant", value=float(value)))


def _append(tape: Tape, node: Node) -> Wire:
    tape.append(node)
    return Wire(tape, len(tape) - 1)


def _needed(tape: Tape, outputs: Sequence[int]) -> Circuit:
    """The variables, and the nodes on a path to an output, numbered anew; equal constants are one node."""
    needed = set(outputs)
    for index in reversed(range(len(tape))):
        if index in needed:
            needed.update(tape[index].operands)
    nodes: list[Node] = []
    new: dict[int, int] = {}
    constants: dict[float, int] = {}
    for index, node in enumerate(tape):
        if node.kind == "constant" and node.value in constants and index in needed:
            new[index] = constants[node.value]
        elif index in needed or node.kind == "variable":
            new[index] = len(nodes)
            if node.kind == "constant":
                constants[node.value] = new[index]
            nodes.append(Node(node.kind, tuple(new[operand] for operand in node.operands), node.value))
    return Circuit(tuple(nodes), tuple(new[output] for output in outputs))
