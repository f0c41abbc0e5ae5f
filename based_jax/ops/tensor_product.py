"""Tensor (Kronecker) products of queries or keys, whose scores are products of scores.

    prod_a q^a . k^a  =  (q^1 x ... x q^A) . (k^1 x ... x k^A)

so attention with products of scores, as in HyperFeatureAttention (Ustaomeroglu and Qu, Definition 5.1), is
linear attention with prod_a d_a features, and has a state of constant size. With q^1 = q^2 and k^1 = k^2
these are the features of (q . k)^2; here the factors differ, and no feature repeats.

If prod_a d_a is too large, M random products are an unbiased estimate:

    psi_m(x) = prod_a (omega^a_m . x^a) / sqrt(M),   signs omega,   E[psi(q) . psi(k)] = prod_a q^a . k^a

(random Maclaurin features, Kar and Karnick 2012, with a vector of signs for each factor).
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from based_jax.ops.core.op import body, op
from based_jax.ops.feature_maps import FeatureMap, fixed_size
from based_jax.typing import Array, Float
from based_jax.validate import expect


@op()
def tensor_product(factors: Sequence[Float[Array, "... _"]]) -> Float[Array, "... F"]:
    """Return all products of one channel of each factor, the last factor's channel running fastest.

    Args:
        factors: A arrays (..., d_a) of one dtype, with the same leading axes.

    Returns:
        (..., prod_a d_a).
    """
    product, *others = factors
    for factor in others:
        pairs = product[..., :, None] * factor[..., None, :]
        product = pairs.reshape(*pairs.shape[:-2], -1)
    return product


def tensor_product_map(widths: Sequence[int]) -> FeatureMap:
    """Return the tensor product as a map for `linear_attention`, for factors concatenated in the channels.

    Args:
        widths: d_a of each factor; their sum is the width of the map's input.

    Returns:
        The map, from (..., sum of the widths) to (..., product of the widths).
    """
    size = Partial(fixed_size, math.prod(widths))
    return FeatureMap(Partial(_all_products, tuple(widths)), similarity=None, size=size)


def _all_products(widths: tuple[int, ...], x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    return body(tensor_product)(factors_in(x, widths))


def factors_in(x: Float[Array, "... K"], widths: Sequence[int]) -> list[Float[Array, "... _"]]:
    """Split x into the factors that are concatenated in its channels."""
    return jnp.split(x, list(accumulate(widths))[:-1], axis=-1)


def sketched_product_map(key: jax.Array, widths: Sequence[int], size: int) -> FeatureMap:
    """Return a map of `size` random features, an unbiased estimate with an error of order size^(-1/2).

    Scores may be negative even if those of the full map are not: do not normalise by their sum.

    Args:
        key: random key of the signs; queries and keys need the same signs, so use one map for a whole text.
        widths: d_a of each factor; the factors are concatenated in the channels.
        size: M, the number of features.

    Returns:
        The map, from (..., sum of the widths) to (..., M); signs are drawn once, here (Kar and Karnick 2012).

    Raises:
        ValueError: `size` is below 1.
    """
    expect(size >= 1, "size", size, "at least 1")
    keys = jax.random.split(key, len(widths))
    signs = [jax.random.rademacher(key, (width, size)) for key, width in zip(keys, widths, strict=True)]
    return FeatureMap(Partial(_some_products, signs), similarity=None, size=Partial(fixed_size, size))


def _some_products(signs: list[Array], x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    parts = zip(factors_in(x, tuple(len(sign) for sign in signs)), signs, strict=True)
    size = signs[0].shape[1]
    return math.prod(part @ sign.astype(x.dtype) for part, sign in parts) * size**-0.5
