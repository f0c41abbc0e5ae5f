"""Count size, depth and width of growing circuits for the table."""

from math import ceil, log2

from papers.check import Check
from papers.zoology.circuits.circuit import Circuit
from papers.zoology.circuits.comparators import compare
from papers.zoology.circuits.recall import recall
from papers.zoology.circuits.sorting import comparators, sort_bits
from papers.zoology.circuits.trace import trace


def growth() -> list[Check]:
    """Compare sizes, depths and widths with formulas."""
    comparisons = [(comparing(d), d) for d in (1, 2, 3, 8, 33, 64)]
    networks = [(sorting_network(2**k, d), k, d) for k in (1, 2, 3, 4) for d in (1, 4)]
    recalls = [(recalling(2**k, d), 2**k, k + 1, 2 * d + k + 1) for k in (1, 2, 3) for d in (1, 3)]
    return [
        _row(
            statement="d bits are compared by O(d) gates on O(log d) levels",
            source="Zoology, lemma H.32",
            bounds="s <= 14 d, Delta <= 5 + 2 ceil(log2 d), w <= 5 d",
            sizes="d = 1..64",
            counts=[(c, (14 * d, 5 + 2 * ceil(log2(d)), 5 * d)) for c, d in comparisons],
        ),
        _row(
            statement="n numbers are sorted by O(n d log^2 n) gates",
            source="Zoology, lemma H.35 (bitonic: one log n more)",
            bounds="C comparators: s <= 20 d C, Delta <= k (k + 1) (5 + log2 d), w <= 4 n d, k = log2 n",
            sizes="n = 2..16, d = 1, 4",
            counts=[
                (c, (20 * d * comparators(2**k), k * (k + 1) * (5 + log2(d)), 4 * d * 2**k))
                for c, k, d in networks
            ],
        ),
        _row(
            statement="MQAR takes O(N d log^2 N) gates, and O(N d) width",
            source="Zoology, proposition H.36 (ours: width without log N)",
            bounds="s <= 16 T D k^2, Delta <= 5 k^2 log2 2 D, w <= 6 T D, k = log2 2 T, D = 2 d + k",
            sizes="T = N / 3 = 2..8 triples, d = 1, 3",
            counts=[(c, (16 * t * d * k**2, 5 * k**2 * log2(2 * d), 6 * t * d)) for c, t, k, d in recalls],
        ),
    ]


def comparing(bits: int) -> Circuit:
    """Return the circuit of x < y for two numbers of d bits, x first."""
    return trace(lambda values: compare(values[:bits], values[bits:])[:1], 2 * bits)


def sorting_network(count: int, bits: int) -> Circuit:
    """`sort_bits` as a circuit."""
    return trace(lambda values: sort_bits(values, bits), count * bits)


def recalling(triples: int, bits: int) -> Circuit:
    """`recall` as a circuit."""
    return trace(lambda values: recall(values, bits), 3 * triples * bits)


def _row(
    statement: str, source: str, bounds: str, sizes: str, counts: list[tuple[Circuit, tuple[float, ...]]]
) -> Check:
    """Return the largest excess of size, depth or width over its bound."""
    over = [
        count - bound
        for circuit, limits in counts
        for count, bound in zip((circuit.size, circuit.depth, circuit.width), limits, strict=True)
    ]
    return Check(statement, source, f"counted: {bounds}", sizes, error=max(0.0, *over))
