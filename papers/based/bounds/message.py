"""Bound the layers by the length of a message (Based, theorem F.4 = 3.3).

Alice has a string of n bits and runs L layers of BaseConv on the pairs (j, x_j). The output for Bob's query
of d bits is then a polynomial in d variables of degree 2^L, whose coefficients she sends, and he can look up
every bit. So the coefficients must hold n bits: few layers on narrow tokens have too few of them.

The string has as many bits as there are different keys. The theorem is stated for c <= N tokens and keys
0..N - 1, which takes c = N: for c tokens, N in the bound becomes c. With fewer tokens than pairs it does not
grow with the length, and neither do the layers of `mqar.base_conv_binary.solver`.
"""

from dataclasses import dataclass
from itertools import count
from math import comb, log2


@dataclass(frozen=True)
class Growth:
    """Theorem F.4 at one length, in tokens as wide as it allows, log2 d = (log2 N)^(1 - epsilon)."""

    layers: int  # the smallest L with 2^L log2 d + log2 B >= log2 N
    bound: float  # the closed form that the proof ends with, epsilon / 2 * log2 log2 N
    large: bool  # whether N is so large that the proof's last steps hold


def monomials(variables: int, degree: int) -> int:
    """Return the number of multilinear monomials of at most a degree.

    The paper has d^D, which is too few for D = 1, by the constant.
    """
    return sum(comb(variables, k) for k in range(min(variables, degree) + 1))


def coefficient_bits(log_pairs: float, layers: int, alpha: float = 1.0) -> float:
    """Return B = (alpha + 2) 2^L log2 N, for parameters of alpha log2 N bits and d <= N."""
    return (alpha + 2) * 2**layers * log_pairs


def layers_needed(pairs: int, width: int, alpha: float = 1.0) -> int:
    """Return the smallest L whose coefficients hold a bit for each of N = `pairs` pairs.

    The keys differ, so tokens have at least log2 N bits, their `width`; parameters have alpha log2 N.
    """
    held = (monomials(width, 2**i) * coefficient_bits(log2(pairs), i, alpha) for i in count())
    return next(layers for layers, bits in enumerate(held) if bits >= pairs)


def growth(log_pairs: float, epsilon: float, alpha: float = 1.0) -> Growth:
    """Return the theorem's two sides at N = 2^log_pairs."""
    log_width = log_pairs ** (1 - epsilon)
    held = (2**i * log_width + log2(coefficient_bits(log_pairs, i, alpha)) for i in count())
    layers = next(layers for layers, bits in enumerate(held) if bits >= log_pairs)
    twice = log2(log_pairs)
    large = log_pairs / 2 >= log2(alpha + 2) + 2 * twice and twice >= 2 / epsilon
    return Growth(layers, epsilon / 2 * twice, large)
