"""Products of scores as scores of products: the tensor (Kronecker) product of several queries or keys.

    prod_a q^a . k^a  =  (q^1 x ... x q^A) . (k^1 x ... x k^A)

so that a product of scores, which HyperFeatureAttention (Ustaomeroglu and Qu, Definition 5.1) multiplies with
its values, is linear attention with prod_a d_a features, and has a state of constant size. With q^1 = q^2 and
k^1 = k^2 these are the features of (q . k)^2; here the factors are free, and no feature comes twice.

Where prod_a d_a is too many, M random products do on average what all of them do:

    psi_m(x) = prod_a (omega^a_m . x^a) / sqrt(M),   signs omega,   E[psi(q) . psi(k)] = prod_a q^a . k^a

(random Maclaurin features, Kar and Karnick 2012, with a vector of signs for each factor).
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from based_jax.ops.core.eager import compiled
from based_jax.ops.feature_maps import FeatureMap, fixed_size
from based_jax.typing import Array, Float
from based_jax.validate import expect


@compiled
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
    """The tensor product as a map for `linear_attention`, of factors that lie side by side in the channels.

    Args:
        widths: d_a of each factor; their sum is the width of the map's input.
    """
    size = Partial(fixed_size, math.prod(widths))
    return FeatureMap(Partial(_all_products, tuple(widths)), similarity=None, size=size)


def _all_products(widths: tuple[int, ...], x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    return tensor_product(factors_in(x, widths))


def factors_in(x: Float[Array, "... K"], widths: Sequence[int]) -> list[Float[Array, "... _"]]:
    """Return what lies side by side in the channels."""
    return jnp.split(x, list(accumulate(widths))[:-1], axis=-1)


def sketched_product_map(key: jax.Array, widths: Sequence[int], size: int) -> FeatureMap:
    """`size` random features in place of all products: unbiased, with an error that falls as size^(-1/2).

    Scores may be negative though those of the whole map are not: do not normalise by their sum.

    Args:
        key: of the signs; queries and keys must meet the same ones, so one map serves a whole text.
        widths: d_a of each factor, which lie side by side in the channels.
        size: M, features.

    Raises:
        ValueError: no features.
    """
    expect(size >= 1, "size", size, "at least 1")
    keys = jax.random.split(key, len(widths))
    signs = [jax.random.rademacher(key, (width, size)) for key, width in zip(keys, widths, strict=True)]
    return FeatureMap(Partial(_some_products, signs), similarity=None, size=Partial(fixed_size, size))


def _some_products(signs: list[Array], x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    parts = zip(factors_in(x, tuple(len(sign) for sign in signs)), signs, strict=True)
    size = signs[0].shape[1]
    return math.prod(part @ sign.astype(x.dtype) for part, sign in parts) * size**-0.5
