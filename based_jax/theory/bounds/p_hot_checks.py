"""The rows for tokens of p one-hot blocks."""

import numpy as np

from based_jax.theory.bounds.degree import layers_for
from based_jax.theory.bounds.p_hot import (
    coefficients,
    degree,
    encode,
    equality,
    lowest_degree,
    monomials,
    product_of_blocks,
)
from based_jax.theory.check import Check, listed

SMALL = ((1, 2), (1, 3), (1, 5), (2, 2), (2, 3))
"""(p, b) for which polynomials are solved for."""

SIZES = (*SMALL, (3, 2), (3, 3), (4, 2))
"""The others take differences."""


def checks(seed: int = 0) -> list[Check]:
    """Based, F.5."""
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
            error=max(wrong_pairs(p, base) + abs(degree(equality(p, base)) - 2 * p) for p, base in SIZES),
        ),
        Check(
            statement="Equality of p-hot tokens has no smaller degree than 2 p",
            source="Based, proposition F.5 and theorem F.6",
            checked="least squares over all block-exclusive polynomials, by degree",
            sizes=f"(p, b) = {listed(SMALL)}",
            error=max(abs(lowest_degree(equality(p, base)) - 2 * p) for p, base in SMALL),
            layer_bound=f">= ceil(log2(2 p)), p = 3: {layers_for(6)} (printed: floor, 2)",
        ),
    ]


def wrong_pairs(p: int, base: int) -> int:
    """Return how many pairs of tokens `product_of_blocks` decides wrongly."""
    tokens = encode(np.arange(base**p), p, base, almost=True)
    first, second = np.indices((base**p, base**p)).reshape(2, -1)
    return int((product_of_blocks(tokens[first], tokens[second], p) != (first == second)).sum())


def _solving_error(rng: np.random.Generator, blocks: int, base: int) -> float:
    values = rng.integers(0, 2, size=(base,) * blocks).astype(np.float64)
    matrix, _ = monomials(blocks, base, almost=True)
    missing = matrix.shape[1] - np.linalg.matrix_rank(matrix)
    solved = np.linalg.solve(matrix, values.reshape(-1))
    return float(missing + np.abs(solved - coefficients(values).reshape(-1)).max())
