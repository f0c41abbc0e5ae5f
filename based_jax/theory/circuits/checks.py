"""The table's rows for circuits: each is compiled, run, and compared with what it should compute."""

from collections.abc import Callable

import numpy as np

from based_jax.theory.base_conv import Matrix
from based_jax.theory.check import Check, counted
from based_jax.theory.circuits.circuit import Circuit
from based_jax.theory.circuits.comparators import to_bits
from based_jax.theory.circuits.compile import run
from based_jax.theory.circuits.fourier import fourier, numpy_fourier
from based_jax.theory.circuits.growth import comparing, growth, recalling, sorting_network
from based_jax.theory.circuits.polynomial import monomials, polynomial, term_by_term
from based_jax.theory.circuits.random import random_circuit
from based_jax.theory.circuits.recall import look_up
from based_jax.theory.circuits.sorting import comparators
from based_jax.theory.circuits.trace import trace
from based_jax.theory.circuits.ways import Way, by_level, merged, on_a_column


def checks(seed: int = 0) -> list[Check]:
    """Zoology, theorem H.21, and circuits that it is applied to."""
    rng = np.random.default_rng(seed)
    return [
        *theorem(rng),
        fft(rng),
        cubic(rng),
        comparison(),
        sorting(rng),
        associative_recall(rng),
        *growth(),
    ]


def theorem(rng: np.random.Generator) -> list[Check]:
    """Random circuits, level by level and with sums merged; the counts are those of the last one."""
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


def fft(rng: np.random.Generator) -> Check:
    """A linear circuit."""
    points = 32
    circuit = trace(fourier, 2 * points)
    u = rng.normal(size=(3, 2 * points))
    statement, source = "Linear circuits are sparse linear layers: the FFT", "Zoology, corollary H.20"
    sizes = f"{points} complex points"
    return _row(statement, source, sizes, [(circuit, u, numpy_fourier(u))], by_level)


def cubic(rng: np.random.Generator) -> Check:
    """A dense polynomial of degree 3."""
    variables, degree = 6, 3
    coefficients = {term: float(rng.normal()) for term in monomials(variables, degree)}
    circuit = trace(lambda values: [polynomial(values, coefficients)], variables)
    u = rng.uniform(-1, 1, size=(5, variables))
    statement, source = "Polynomials of degree D are 2 D - 1 layers", "Zoology, theorem 4.2 (ours)"
    sizes = f"D = {degree}, {variables} variables, {len(coefficients)} terms"
    return _row(statement, source, sizes, [(circuit, u, term_by_term(u, coefficients))])


def comparison() -> Check:
    """x < y of two numbers, for all pairs."""
    bits = 5
    x, y = (axis.ravel() for axis in np.indices((2**bits, 2**bits)))
    u = np.hstack([to_bits(x, bits), to_bits(y, bits)])
    circuit = comparing(bits)
    statement, source = "Numbers of d bits are compared by a circuit", "Zoology, lemma H.32"
    return _row(statement, source, f"d = {bits}, all pairs", [(circuit, u, (x < y)[:, None])])


def sorting(rng: np.random.Generator) -> Check:
    """Batcher's network."""
    count, bits = 8, 4
    circuit = sorting_network(count, bits)
    numbers = rng.integers(2**bits, size=(5, count))
    u, ordered = (to_bits(order, bits).reshape(5, -1) for order in (numbers, np.sort(numbers)))
    statement, source = "Numbers are sorted by a network of comparators", "Zoology, lemma H.35 (bitonic)"
    sizes = f"{count} numbers of {bits} bits: {comparators(count)} comparators"
    return _row(statement, source, sizes, [(circuit, u, ordered)])


def associative_recall(rng: np.random.Generator) -> Check:
    """MQAR by sorting."""
    triples, bits = 4, 2
    circuit = recalling(triples, bits)
    u = rng.integers(2, size=(5, 3 * triples * bits)).astype(np.float64)
    statement, source = "MQAR is a circuit of sorting networks", "Zoology, propositions H.33 and H.36 (ours)"
    sizes = f"{triples} triples of {bits} bits"
    return _row(statement, source, sizes, [(circuit, u, look_up(u, bits))])


Instance = tuple[Circuit, Matrix, Matrix]
"""A circuit, a batch of inputs, and the outputs of the direct computation."""


def _row(
    statement: str, source: str, sizes: str, instances: list[Instance], way: Callable[[Circuit], Way] = merged
) -> Check:
    """The largest error of all instances, and the counts of the last; to miss a bound is an error too."""
    errors = []
    for circuit, u, expected in instances:
        compiled = way(circuit)
        account = compiled.stack.account
        errors.append(float(np.abs(run(compiled.stack, u, len(circuit.outputs)) - expected).max()))
        errors += [account.layers - compiled.layers, account.length * account.width - compiled.values]
    return Check(
        statement=statement,
        source=source,
        checked=f"compiled {compiled.name}, against the direct computation",
        sizes=f"{sizes}: s = {circuit.size}, Delta = {circuit.depth}, w = {circuit.width}",
        error=max(errors),
        **counted(account),
        layer_bound=f"{compiled.formula} = {compiled.layers:,}",
    )
