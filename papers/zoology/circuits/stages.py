"""Divide a compiled circuit into stages: which values are in which columns, and when.

A stage has one layer for sums and for moving values, and another for products of two values. Its values are
those that are read after it, by later stages or as outputs.
"""

from dataclasses import dataclass
from itertools import pairwise

from papers.zoology.circuits.circuit import Circuit, last_uses


@dataclass(frozen=True)
class Stage:
    """One stage; values are indices of the circuit's nodes, and columns count from 0.

    Between its two layers the stage's products do not exist yet: the column of each has its second factor.
    """

    before: list[int]  # the values before it, in columns 0, 1, ...
    seats: list[int]  # the values in the columns between its two layers
    products: dict[int, int]  # of each product's column, the column of its first factor
    kept: int  # how many columns are read after the stage; the others hold first factors


def stages(circuit: Circuit, levels: tuple[int, ...]) -> list[Stage]:
    """Return the stages 1, 2, ... of a circuit, at least one.

    `levels` has the stage that computes each node: `Circuit.levels` or `merged_levels`.
    """
    values = held(circuit, levels)
    own = ([levels[node] == number for node in after] for number, after in enumerate(values[1:], 1))
    return [_stage(circuit, *pair, new) for pair, new in zip(pairwise(values), own, strict=True)]


def held(circuit: Circuit, levels: tuple[int, ...]) -> list[list[int]]:
    """Return the values before the first stage and after each: variables, values read later, outputs."""
    last = max(1, *(levels[output] for output in circuit.outputs))
    uses = last_uses(circuit, levels, last)
    values = [list(range(circuit.variables))]
    for number in range(1, last):
        crossing = [node for node, level in enumerate(levels) if level <= number < uses[node]]
        values.append([node for node in crossing if circuit.nodes[node].kind != "constant"])
    values.append(list(circuit.outputs))
    return values


def _stage(circuit: Circuit, before: list[int], after: list[int], new: list[bool]) -> Stage:
    """Make one stage from the values on both sides of it, and which of those after it are its own."""
    factors = {
        column: circuit.nodes[node].operands
        for column, node in enumerate(after)
        if new[column] and circuit.nodes[node].kind == "*" and not circuit.linear(node)
    }
    seats = [factors[column][1] if column in factors else node for column, node in enumerate(after)]
    seats += sorted({first for first, _ in factors.values()} - set(seats))
    products = {column: seats.index(first) for column, (first, _) in factors.items()}
    return Stage(before, seats, products, len(after))


def merged_levels(circuit: Circuit) -> tuple[int, ...]:
    """Return for each node the first stage that can have it, if one layer adds sums of sums of its inputs.

    The level of a product of two values is the number of such products on the longest path to it; a sum of
    them is one level above.
    """
    levels: list[int] = []
    for node in circuit.nodes:
        values = [operand for operand in node.operands if circuit.nodes[operand].kind != "constant"]
        above = [levels[value] + (not circuit.linear(value)) for value in values]
        levels.append(max(above, default=1 if node.operands else 0))
    return tuple(levels)


def product_depth(circuit: Circuit) -> int:
    """M, the products of two values on the path to an output that has the most."""
    levels = merged_levels(circuit)
    return max(levels[output] - circuit.linear(output) for output in circuit.outputs)
