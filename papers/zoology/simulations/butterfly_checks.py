"""Check butterfly matrices."""

from functools import reduce

import numpy as np

from papers.check import Check, counted, largest_difference
from papers.zoology.simulations.butterfly import (
    Factor,
    butterfly,
    butterfly_matrix,
    fourier_factors,
    kaleidoscope,
)

ROWS, WIDTH, EXPANSION, MEMBERS = 8, 4, 2, 3
"""n, d, e and w of the instances."""

LEVELS, EXPANDED = 5, 6
"""log2(n d) and log2(e n d)."""


def checks(seed: int = 0) -> list[Check]:
    """Check Zoology, H.15, lemmas H.16 and H.18, and the Fourier transform as butterflies."""
    rng = np.random.default_rng(seed)
    size = ROWS * WIDTH
    far = [Factor(size, *rng.normal(size=(2, size)))]
    matrix = butterfly_matrix(rng, size)
    products = kaleidoscope(rng, EXPANSION * size, MEMBERS)
    levels, expanded = f"5 log2 nd = {5 * LEVELS}", f"5 * 2 w log2 end = {10 * MEMBERS * EXPANDED}"
    rows = [
        ("A butterfly factor is O(1) layers", "lemma H.16 (1)", far, "9, by its proof"),
        ("A butterfly matrix is O(log nd) layers", "lemma H.16 (2)", matrix, levels),
        ("A corner of (BB*)^w is O(w log end) layers", "lemma H.18", products, expanded, EXPANSION),
    ]
    return [*(_row(rng, *row) for row in rows), _fourier(rng)]


def _row(
    rng: np.random.Generator,
    statement: str,
    source: str,
    factors: list[Factor],
    bound: str,
    expansion: int = 1,
) -> Check:
    u = rng.uniform(-1, 1, size=(ROWS, WIDTH))
    stack = butterfly((expansion * ROWS, 3 * WIDTH), factors)
    x = np.pad(u.reshape(-1), (0, (expansion - 1) * u.size))
    expected = reduce(lambda x, factor: factor(x), factors, x)[: u.size]
    return Check(
        statement=statement,
        source=f"Zoology, {source}",
        checked="the layers against the product of the factors",
        sizes=f"n = {ROWS}, d = {WIDTH}" + (f", e = {EXPANSION}, w = {MEMBERS}" if expansion > 1 else ""),
        error=largest_difference(stack(u).reshape(-1), expected),
        **counted(stack),
        layer_bound=bound,
    )


def _fourier(rng: np.random.Generator) -> Check:
    points, bits = ROWS * WIDTH // 2, LEVELS - 1
    z = rng.uniform(-1, 1, size=points) + 1j * rng.uniform(-1, 1, size=points)
    reverse = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(points)]
    u = np.stack([z[reverse].real, z[reverse].imag], axis=1).reshape(ROWS, WIDTH)
    stack = butterfly((ROWS, 3 * WIDTH), fourier_factors(points))
    real, imaginary = stack(u).reshape(-1, 2).T
    return Check(
        statement="A Fourier transform is butterfly factors, real ones",
        source="Zoology, definition H.14",
        checked="the layers against a fast Fourier transform",
        sizes=f"{points} complex numbers in {ROWS} x {WIDTH}",
        error=largest_difference(real + 1j * imaginary, np.fft.fft(z)),
        **counted(stack),
    )
