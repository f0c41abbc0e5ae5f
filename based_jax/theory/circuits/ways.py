"""The three ways to compile a circuit, and what each may take."""

from dataclasses import dataclass
from math import ceil, log2

from based_jax.theory.base_conv import Stack
from based_jax.theory.circuits.circuit import Circuit
from based_jax.theory.circuits.columnar import compile_columns
from based_jax.theory.circuits.compile import compile_circuit
from based_jax.theory.circuits.stages import product_depth


@dataclass(frozen=True)
class Way:
    """A circuit compiled in one of the ways, and what it may take."""

    name: str
    stack: Stack
    formula: str  # of the layers that it may take
    layers: int  # what comes of the formula
    values: int  # the size that the inner matrix may have


def by_level(circuit: Circuit) -> Way:
    """Return a row of at most 2 w values."""
    stack = compile_circuit(circuit, merge=False)
    return Way("level by level, on a row", stack, "2 Delta", 2 * circuit.depth, 2 * circuit.width)


def merged(circuit: Circuit) -> Way:
    """Return a row of no more values than the circuit has."""
    layers = 2 * product_depth(circuit) + 1
    return Way("with sums merged, on a row", compile_circuit(circuit), "2 M + 1", layers, circuit.size)


def on_a_column(circuit: Circuit) -> Way:
    """9 columns of less than 2 w values."""
    layers = 1 + circuit.depth * (10 * ceil(log2(circuit.width)) - 3)
    stack = compile_columns(circuit)
    return Way("level by level, on a column", stack, "1 + Delta (10 r - 3)", layers, 18 * circuit.width)
