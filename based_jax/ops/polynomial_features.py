"""Low-rank factors of exp(Q K^T / K): the exponential's Taylor polynomial as features of q and k.

    phi(q) . phi(k) = sum_{m <= g} s^m / m!  ~  exp(s),   s = q . k / K
    phi_a(x) = sqrt(1 / (a! K^|a|)) prod_i x_i^(a_i)      for every multi-index a of degree |a| <= g

There is one feature per monomial, so the rank is exactly binomial(K + g, g): the polynomial method of Alman
and Song (2023), used by Gu et al. ("Conv-Basis", Lemma C.2). Both state only that such factors exist; these
are the symmetric ones, smaller than their binomial(2 (g + K), 2 g). The rank grows as K^g, so use them for
narrow heads and small |s|. Degree 2 with 1 / sqrt(K) instead of 1 / K is the map of `taylor_attention`.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from based_jax.ops.feature_maps import FeatureMap
from based_jax.typing import Array, Float
from based_jax.validate import expect


def polynomial_map(degree: int, scale: float | None = None) -> FeatureMap:
    """Return the Taylor polynomial of exp(scale q . k) as a map for `linear_attention` and `masked_low_rank`.

    For even degrees every similarity, and so every normaliser, is positive. For odd degrees a similarity is
    negative if s is far enough below 0.

    Args:
        degree: g >= 0.
        scale: factor of the scores, > 0; default 1 / K as in the paper (K the width of the inputs).

    Raises:
        ValueError: a negative degree, or a scale that is not positive.
    """
    expect(degree >= 0, "degree", degree, "at least 0")
    expect(scale is None or scale > 0, "scale", scale, "None or more than 0")
    return FeatureMap(*(Partial(part, degree, scale) for part in (_features, _similarity, _size)))


def _features(degree: int, scale: float | None, x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    width = x.shape[-1]
    return _monomials(x * math.sqrt(1 / width if scale is None else scale), degree)


def _similarity(
    degree: int, scale: float | None, products: Float[Array, "... N M"], width: int
) -> Float[Array, "... N M"]:
    s = products * (1 / width if scale is None else scale)
    total = jnp.ones_like(s)
    for power in range(degree, 0, -1):  # Horner
        total = 1 + s / power * total
    return total


def _size(degree: int, scale: float | None, width: int) -> int:
    return polynomial_size(width, degree)


def polynomial_size(width: int, degree: int) -> int:
    """Count the monomials of at most `degree` in `width` variables, binomial(width + degree, degree)."""
    return math.comb(width + degree, degree)


def polynomial_error(degree: int, largest: float) -> float:
    """Return the largest relative error |P(s) - e^s| / e^s of Taylor's polynomial over |s| <= `largest`.

    The derivative of 1 - P(s) e^-s is e^-s s^g / g!, so the error grows away from 0, and more to the left:
    it is the integral of e^t t^g / g! from 0 to `largest`. With entries of q and k within [-B, B] and the
    scale 1 / K, `largest` is B^2. Factors with an error below 0.1 bound the error of attention by 4 times it
    (Theorem 6.5 of the paper).

    Raises:
        ValueError: a negative degree or `largest`.
    """
    expect(degree >= 0, "degree", degree, "at least 0")
    expect(largest >= 0, "largest", largest, "at least 0")
    total, power, term = 0.0, 0, largest ** (degree + 1) / math.factorial(degree)
    while term > 1e-17 * total:  # sum of S^(g + 1 + j) / (g! j! (g + 1 + j)), all terms positive
        total += term / (degree + 1 + power)
        power += 1
        term *= largest / power
    return total


def polynomial_degree(error: float, largest: float) -> int:
    """Return the smallest degree whose `polynomial_error` over |s| <= `largest` is at most `error`.

    Raises:
        ValueError: an error that is not positive, or a negative `largest`.
    """
    expect(error > 0, "error", error, "more than 0")
    degree = 0
    while polynomial_error(degree, largest) > error:
        degree += 1
    return degree


def _monomials(x: Float[Array, "... K"], degree: int) -> Float[Array, "... F"]:
    """Return prod_i x_i^(a_i) / sqrt(a!) for all |a| <= degree, by degree.

    Within a degree monomials are ordered by their largest variable: those up to variable i are a slice, which
    times x_i gives those of the next degree with largest variable i. This avoids gathers in both passes.
    """
    width = x.shape[-1]
    blocks = [jnp.ones_like(x[..., :1])]
    exponents = np.zeros((1, width), int)
    upto = np.ones(width, int)  # monomials of the last degree with no variable above i
    counts = [exponents]
    for _ in range(degree):
        last = blocks[-1]
        blocks.append(jnp.concatenate([x[..., i : i + 1] * last[..., : upto[i]] for i in range(width)], -1))
        unit = np.eye(width, dtype=int)
        exponents = np.concatenate([exponents[: upto[i]] + unit[i] for i in range(width)])
        counts.append(exponents)
        upto = np.cumsum(upto)
    factorials = np.array([math.factorial(n) for n in range(degree + 1)], float)
    roots = 1 / np.sqrt(factorials[np.concatenate(counts)].prod(axis=-1))
    return jnp.concatenate(blocks, axis=-1) * roots.astype(x.dtype)
