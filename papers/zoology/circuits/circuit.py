"""Define arithmetic circuits: + and x over variables and constants, counted as in the papers.

An (n, s, Delta, w)-circuit has n variables, s nodes, Delta gates on its longest path, and w wires that a
horizontal cut meets (Zoology, definition H.1; Based, definition F.1). `trace` writes one down.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a circuit."""

    kind: Literal["variable", "constant", "+", "*"]  # "+" and "*" are the gates
    operands: tuple[int, ...] = ()  # of a gate: indices of two earlier nodes, possibly equal
    value: float = 0.0  # of a constant


@dataclass(frozen=True, eq=False)
class Circuit:
    """A circuit, evaluated by calling it."""

    nodes: tuple[Node, ...]  # the variables first, and each gate after its operands
    outputs: tuple[int, ...]  # indices of nodes

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Evaluate gate by gate in float64, (..., n) to (..., outputs): exact for integers below 2^53."""
        values = list(np.moveaxis(u.astype(np.float64), -1, 0))
        for node in self.nodes[self.variables :]:
            if node.kind == "constant":
                values.append(np.full(u.shape[:-1], node.value))
            else:
                left, right = (values[operand] for operand in node.operands)
                values.append(left + right if node.kind == "+" else left * right)
        return np.stack([values[output] for output in self.outputs], axis=-1)

    @cached_property
    def variables(self) -> int:
        """n."""
        return sum(node.kind == "variable" for node in self.nodes)

    @property
    def size(self) -> int:
        """s, the nodes: variables, constants and gates."""
        return len(self.nodes)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each node, the gates on the longest path to it: 0 for variables and constants."""
        levels: list[int] = []
        for node in self.nodes:
            levels.append(1 + max(levels[operand] for operand in node.operands) if node.operands else 0)
        return tuple(levels)

    @property
    def depth(self) -> int:
        """Delta, the gates on the longest path to an output."""
        return max(self.levels[output] for output in self.outputs)

    @cached_property
    def width(self) -> int:
        """w, the largest number of values that a cut meets: between two levels, before or after all of them.

        A cut meets the values from below it that are read above it or are outputs, each counted once;
        constants do not count. Before all levels it meets the variables, after all of them the outputs.
        """
        last = last_uses(self, self.levels, self.depth)
        change = np.zeros(self.depth + 2, int)
        for node, level, end in zip(self.nodes, self.levels, last, strict=True):
            if node.kind != "constant":
                change[level] += 1
                change[max(level, end)] -= 1
        crossing = np.cumsum(change)[: self.depth]
        return max(self.variables, len(self.outputs), *crossing.tolist())

    def linear(self, index: int) -> bool:
        """Return whether a node is a sum, or a product with a constant: the gates of definition H.13."""
        node = self.nodes[index]
        scaled = any(self.nodes[operand].kind == "constant" for operand in node.operands)
        return node.kind == "+" or (node.kind == "*" and scaled)


def last_uses(circuit: Circuit, stages: tuple[int, ...], last: int) -> list[int]:
    """Return for each node the last of `stages` with a gate that reads it: `last` for outputs, 0 for none."""
    uses = [0] * circuit.size
    for node, stage in zip(circuit.nodes, stages, strict=True):
        for operand in node.operands:
            uses[operand] = max(uses[operand], stage)
    for output in circuit.outputs:
        uses[output] = last
    return uses
