"""Tensor (Kronecker) products of queries or keys, whose scores are products of scores.

    prod_a q^a . k^a  =  (q^1 x ... x q^A) . (k^1 x ... x k^A)

so attention with products of scores, as in HyperFeatureAttention (Ustaomeroglu and Qu, Definition 5.1), is
linear attention with prod_a d_a features, and has a state of constant size. With q^1 = q^2 and k^1 = k^2
these are the features of (q . k)^2; here the factors differ, and no feature repeats.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import jax.numpy as jnp
from jax.tree_util import Partial

from based_jax.ops.core.op import body, op
from based_jax.ops.feature_maps import FeatureMap, fixed_size
from based_jax.typing import Array, Float


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
