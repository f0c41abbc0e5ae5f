"""Check degrees, of binary and of p-hot tokens, and the length of a message."""

from collections.abc import Iterator

import numpy as np

from papers.based.bounds import p_hot
from papers.based.bounds.degree import degree, layers_for, outputs, product, recall, recall_degree
from papers.based.bounds.message import growth
from papers.check import Check, listed
from papers.zoology.base_conv import Layer, Stack

SMALL = ((1, 2), (1, 3), (1, 5), (2, 2), (2, 3))
"""(p, b) for which the polynomials over p-hot tokens are solved."""

SIZES = (*SMALL, (3, 2), (3, 3), (4, 2))
"""Larger (p, b), checked by differences."""


def checks(seed: int = 0) -> list[Check]:
    """Based, lemmas F.1 and F.2, theorems F.4 and F.5; for tokens of p one-hot blocks, F.5."""
    return [_doubling(np.random.default_rng(seed)), *_recall(), _message(), *_p_hot(seed)]


def _doubling(rng: np.random.Generator) -> Check:
    layers, shape = 3, (3, 3)
    largest = degree(outputs(random_stack(rng, layers, shape), *shape))
    reached = degree(outputs(product(layers), 2**layers, 1))
    return Check(
        statement="L layers of BaseConv are polynomials of degree <= 2^L",
        source="Based, lemma F.1",
        checked="Moebius transform of a random stack; a product of 2^L rows reaches it",
        sizes=f"L = {layers}, {shape[0]} x {shape[1]} bits; {2**layers} bits",
        error=float(max(0, largest - 2**layers) + abs(reached - 2**layers)),
        layers=layers,
        layer_bound=f"degree {largest} and {reached} <= 2^{layers}",
    )


def _recall() -> Iterator[Check]:
    sizes = ((1, 1), (2, 1), (3, 1), (2, 3), (1, 5))
    yield Check(
        statement="MQAR over d bits has degree 2 d + 1",
        source="Based, lemma F.2 and theorem F.5 (3.2)",
        checked="Moebius transform of the sum of matching values",
        sizes=f"(d, pairs) = {listed(sizes)}",
        error=float(max(abs(degree(recall(d, i)) - recall_degree(d, i)) for d, i in sizes)),
        layer_bound=f">= ceil(log2(2 d + 1)), d = 3: {layers_for(7)}",
    )

    sizes = ((1, 3), (1, 5), (2, 2), (2, 3), (2, 4), (3, 2))
    off = [degree(recall(d, i, first=True)) - recall_degree(d, i, first=True) for d, i in sizes]
    yield Check(
        statement="MQAR where the first match counts: 2 d ceil(i / 2) + 1",
        source="Based, lemma F.2 (ours, for repeated keys)",
        checked="Moebius transform of the first matching value",
        sizes=f"(d, pairs i) = {listed(sizes)}",
        error=float(max(map(abs, off))),
        layer_bound=f">= its log2, d = 20, i = 2^20: {layers_for(recall_degree(20, 2**20, first=True))}",
    )


def _message() -> Check:
    rows = [growth(2.0**k, epsilon) for k in range(2, 21) for epsilon in (0.25, 0.5, 0.75, 1.0)]
    last = growth(2.0**20, 0.5)
    return Check(
        statement="Layers for N different keys grow as log log N",
        source="Based, theorem F.4 (3.3)",
        checked="smallest L whose coefficients hold N bits against (eps / 2) log2 log2 N",
        sizes="log2 N = 2^2..2^20, eps = 0.25..1",
        error=max(0.0, *(row.bound - row.layers for row in rows if row.large)),
        layers=last.layers,
        layer_bound=f">= {last.bound:g} at log2 N = 2^20, eps = 0.5",
    )


def _p_hot(seed: int) -> list[Check]:
    rng = np.random.default_rng(seed)
    return [
        Check(
            statement="Over almost p-hot tokens one block-exclusive polynomial fits",
            source="Based, proposition F.4",
            checked="coefficients solved for against differences, and full rank",
            sizes=f"(p, b) = {listed(SMALL)}; 2 p blocks, random Boolean functions",
            error=max(_solving_error(rng, 2 * p, base) for p, base in SMALL),
        ),
        Check(
            statement="Equality of almost p-hot tokens has degree 2 p",
            source="Based, lemma F.4",
            checked="the product over blocks on all pairs; degree by differences",
            sizes=f"(p, b) = {listed(SIZES)}",
            error=max(
                wrong_pairs(p, base) + abs(p_hot.degree(p_hot.equality(p, base)) - 2 * p) for p, base in SIZES
            ),
        ),
        Check(
            statement="Equality of p-hot tokens has no smaller degree than 2 p",
            source="Based, proposition F.5 and theorem F.6",
            checked="least squares over all block-exclusive polynomials, by degree",
            sizes=f"(p, b) = {listed(SMALL)}",
            error=max(abs(p_hot.lowest_degree(p_hot.equality(p, base)) - 2 * p) for p, base in SMALL),
            layer_bound=f">= ceil(log2(2 p)), p = 3: {layers_for(6)} (printed: floor, 2)",
        ),
    ]


def random_stack(rng: np.random.Generator, layers: int, shape: tuple[int, int]) -> Stack:
    """Return layers with normally distributed parameters."""
    width = shape[1]
    drawn = (Layer(rng.normal(size=(width, width)), *rng.normal(size=(3, *shape))) for _ in range(layers))
    return Stack(shape, tuple(drawn))


def wrong_pairs(p: int, base: int) -> int:
    """Return how many pairs of tokens `product_of_blocks` decides wrongly."""
    tokens = p_hot.encode(np.arange(base**p), p, base, almost=True)
    first, second = np.indices((base**p, base**p)).reshape(2, -1)
    return int((p_hot.product_of_blocks(tokens[first], tokens[second], p) != (first == second)).sum())


def _solving_error(rng: np.random.Generator, blocks: int, base: int) -> float:
    values = rng.integers(0, 2, size=(base,) * blocks).astype(np.float64)
    matrix, _ = p_hot.monomials(blocks, base, almost=True)
    missing = matrix.shape[1] - np.linalg.matrix_rank(matrix)
    solved = np.linalg.solve(matrix, values.reshape(-1))
    return float(missing + np.abs(solved - p_hot.coefficients(values).reshape(-1)).max())
