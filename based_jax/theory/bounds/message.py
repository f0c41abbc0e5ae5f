"""Layers by the length of a message (Based, theorem F.4 = 3.3).

Alice has a string of n bits and runs L layers of BaseConv on the pairs (j, x_j). What Bob's query of d bits
becomes is then a polynomial in d variables of degree 2^L, whose coefficients she sends, and he can look up
every bit. So the coefficients must hold n bits: with few layers on narrow tokens there are too few of them.

The string has as many bits as there are different keys. The theorem is stated for c <= N tokens and keys
0..N - 1, which takes c = N: for c tokens, N in the bound becomes c. With fewer tokens than pairs it does not
grow with the length, and neither do the layers of `mqar.base_conv_binary.solver`.
"""

from dataclasses import dataclass
from math import comb, log2

from based_jax.validate import expect


@dataclass(frozen=True)
class Growth:
    """Theorem F.4 at one length, in tokens as wide as it allows.

    Attributes:
        log_pairs: log2 N.
        log_width: log2 d = (log2 N)^(1 - epsilon).
        layers: the smallest L with 2^L log2 d + log2 B >= log2 N.
        bound: the closed form that the proof ends with, epsilon / 2 * log2 log2 N.
        large: whether N is so large that the proof's last steps hold.
    """

    log_pairs: float
    log_width: float
    layers: int
    bound: float
    large: bool


def monomials(variables: int, degree: int) -> int:
    """How many multilinear monomials of at most a degree there are.

    The paper has d^D, which is too few for D = 1, by the constant.
    """
    return sum(comb(variables, k) for k in range(min(variables, degree) + 1))


def coefficient_bits(log_pairs: float, layers: int, alpha: float = 1.0) -> float:
    """B = (alpha + 2) 2^L log2 N, for parameters of alpha log2 N bits and d <= N."""
    return (alpha + 2) * 2**layers * log_pairs


def layers_needed(pairs: int, width: int, alpha: float = 1.0) -> int:
    """The smallest L whose coefficients hold a bit for each pair.

    Args:
        pairs: N, with different keys.
        width: d, bits of a token; N keys differ, so at least log2 N, and at most N.
        alpha: bits of a parameter are alpha log2 N.

    Raises:
        ValueError: fewer than two pairs, or a width out of its range.
    """
    expect(pairs > 1, "pairs", pairs, "at least 2")
    expect(log2(pairs) <= width <= pairs, "width", width, f"log2 N to N = {pairs}")
    layers = 0
    while monomials(width, 2**layers) * coefficient_bits(log2(pairs), layers, alpha) < pairs:
        layers += 1
    return layers


def growth(log_pairs: float, epsilon: float, alpha: float = 1.0) -> Growth:
    """The theorem's two sides at N = 2^log_pairs.

    Raises:
        ValueError: `log_pairs` below 2, or `epsilon` not in (0, 1].
    """
    expect(log_pairs >= 2, "log_pairs", log_pairs, "at least 2")
    expect(0 < epsilon <= 1, "epsilon", epsilon, "in (0, 1]")
    log_width = log_pairs ** (1 - epsilon)
    layers = 0
    while 2**layers * log_width + log2(coefficient_bits(log_pairs, layers, alpha)) < log_pairs:
        layers += 1
    twice = log2(log_pairs)
    large = log_pairs / 2 >= log2(alpha + 2) + 2 * twice and twice >= 2 / epsilon
    return Growth(log_pairs, log_width, layers, epsilon / 2 * twice, large)
