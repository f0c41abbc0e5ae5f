"""Check circuits: each is compiled, run, and compared with the direct computation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from papers.check import Check, counted, largest_difference
from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.circuits.circuit import Circuit
from papers.zoology.circuits.columnar import compile_columns
from papers.zoology.circuits.comparators import to_bits
from papers.zoology.circuits.compile import compile_circuit, run
from papers.zoology.circuits.fourier import fourier, numpy_fourier
from papers.zoology.circuits.growth import comparing, growth, recalling, sorting_network
from papers.zoology.circuits.polynomial import monomials, polynomial, term_by_term
from papers.zoology.circuits.random import random_circuit
from papers.zoology.circuits.recall import look_up
from papers.zoology.circuits.sorting import comparators
from papers.zoology.circuits.stages import product_depth
from papers.zoology.circuits.trace import trace

Instance = tuple[Circuit, Matrix, Matrix]
"""A circuit, a batch of inputs, and the outputs of the direct computation."""


@dataclass(frozen=True)
class Way:
    """A compiled circuit, and the bounds of its compilation."""

    name: str
    stack: Stack
    formula: str  # formula of the bound on layers
    layers: int  # value of the formula
    values: int  # bound on the size of the inner matrix


def by_level(circuit: Circuit) -> Way:
    """Compile to a row of at most 2 w values."""
    stack = compile_circuit(circuit, merge=False)
    return Way("level by level, on a row", stack, "2 Delta", 2 * circuit.depth, 2 * circuit.width)


def merged(circuit: Circuit) -> Way:
    """Compile to a row of no more values than the circuit has."""
    layers = 2 * product_depth(circuit) + 1
    return Way("with sums merged, on a row", compile_circuit(circuit), "2 M + 1", layers, circuit.size)


def on_a_column(circuit: Circuit) -> Way:
    """Compile to 9 columns of less than 2 w values."""
    layers = 1 + circuit.depth * (10 * ceil(log2(circuit.width)) - 3)
    stack = compile_columns(circuit)
    return Way("level by level, on a column", stack, "1 + Delta (10 r - 3)", layers, 18 * circuit.width)


def checks(seed: int = 0) -> list[Check]:
    """Check Zoology, theorem H.21, and circuits that it is applied to."""
    rng = np.random.default_rng(seed)
    return [*theorem(rng), *applications(rng), *growth()]


def theorem(rng: np.random.Generator) -> list[Check]:
    """Check random circuits, level by level and with sums merged; the counts are those of the last one."""
    circuits = [random_circuit(rng, variables=5, gates=40, outputs=3, reach=reach) for reach in (2, 4, 8, 16)]
    inputs = [rng.uniform(-1, 1, size=(3, circuit.variables)) for circuit in circuits]
    instances = [(circuit, u, circuit(u)) for circuit, u in zip(circuits, inputs, strict=True)]
    sizes = f"{len(circuits)} random circuits, 3 inputs each; the last"
    source = "Zoology, theorem H.21 = 4.2; Based, theorem F.1"
    return [
        _row("Circuits are O(Delta log w) layers on O(w) rows", source, sizes, instances, on_a_column),
        _row("... or 2 Delta on one row of 2 w", f"{source} (ours)", sizes, instances, by_level),
        _row("... or 2 M + 1, with M products on a path", f"{source} (ours)", sizes, instances),
    ]


def applications(rng: np.random.Generator) -> Iterator[Check]:
    """Check a linear circuit, a dense polynomial, comparing, sorting, and MQAR by sorting."""
    points = 32
    circuit, u = trace(fourier, 2 * points), rng.normal(size=(3, 2 * points))
    statement, source = "Linear circuits are sparse linear layers: the FFT", "Zoology, corollary H.20"
    yield _row(statement, source, f"{points} complex points", [(circuit, u, numpy_fourier(u))], by_level)

    variables, degree = 6, 3
    coefficients = {term: float(rng.normal()) for term in monomials(variables, degree)}
    circuit = trace(lambda values: [polynomial(values, coefficients)], variables)
    u = rng.uniform(-1, 1, size=(5, variables))
    statement, source = "Polynomials of degree D are 2 D - 1 layers", "Zoology, theorem 4.2 (ours)"
    sizes = f"D = {degree}, {variables} variables, {len(coefficients)} terms"
    yield _row(statement, source, sizes, [(circuit, u, term_by_term(u, coefficients))])

    bits = 5
    x, y = (axis.ravel() for axis in np.indices((2**bits, 2**bits)))
    u = np.hstack([to_bits(x, bits), to_bits(y, bits)])
    statement, source = "Numbers of d bits are compared by a circuit", "Zoology, lemma H.32"
    yield _row(statement, source, f"d = {bits}, all pairs", [(comparing(bits), u, (x < y)[:, None])])

    count, bits = 8, 4
    numbers = rng.integers(2**bits, size=(5, count))
    u, ordered = (to_bits(order, bits).reshape(5, -1) for order in (numbers, np.sort(numbers)))
    statement, source = "Numbers are sorted by a network of comparators", "Zoology, lemma H.35 (bitonic)"
    sizes = f"{count} numbers of {bits} bits: {comparators(count)} comparators"
    yield _row(statement, source, sizes, [(sorting_network(count, bits), u, ordered)])

    triples, bits = 4, 2
    u = rng.integers(2, size=(5, 3 * triples * bits)).astype(np.float64)
    statement, source = "MQAR is a circuit of sorting networks", "Zoology, propositions H.33 and H.36 (ours)"
    sizes = f"{triples} triples of {bits} bits"
    yield _row(statement, source, sizes, [(recalling(triples, bits), u, look_up(u, bits))])


def _row(
    statement: str, source: str, sizes: str, instances: list[Instance], way: Callable[[Circuit], Way] = merged
) -> Check:
    """Return the largest error of all instances, and the last one's counts; exceeding a bound is an error."""
    errors = []
    for circuit, u, expected in instances:
        compiled = way(circuit)
        stack = compiled.stack
        errors.append(largest_difference(run(stack, u, len(circuit.outputs)), expected))
        errors += [len(stack.layers) - compiled.layers, stack.shape[0] * stack.shape[1] - compiled.values]
    return Check(
        statement=statement,
        source=source,
        checked=f"compiled {compiled.name}, against the direct computation",
        sizes=f"{sizes}: s = {circuit.size}, Delta = {circuit.depth}, w = {circuit.width}",
        error=max(errors),
        **counted(stack),
        layer_bound=f"{compiled.formula} = {compiled.layers:,}",
    )
