"""Products of scores as scores of products: the tensor (Kronecker) product of several queries or keys.

    prod_a q^a . k^a  =  (q^1 x ... x q^A) . (k^1 x ... x k^A)

so that a product of scores, which HyperFeatureAttention (Ustaomeroglu and Qu, Definition 5.1) multiplies with
its values, is linear attention with prod_a d_a features, and has a state of constant size. With q^1 = q^2 and
k^1 = k^2 these are the features of (q . k)^2; here the factors are free, and no feature comes twice.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import jax.numpy as jnp

from based_jax.ops.feature_maps import FeatureMap
from based_jax.typing import Array, Float


def tensor_product(factors: Sequence[Float[Array, "... _"]]) -> Float[Array, "... F"]:
    """All products of one channel of each factor, the last factor's channel running fastest.

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
    borders = list(accumulate(widths))[:-1]
    return FeatureMap(
        features=lambda x: tensor_product(jnp.split(x, borders, axis=-1)),
        similarity=None,
        size=lambda width: math.prod(widths),
    )
