"""The second-order Taylor map (Based, section 4.1 and its code, which scale by the feature width):

    phi(q) . phi(k) = 1 + s + s^2 / 2,   s = q . k / sqrt(K)

Full form: 1 + K + K^2 features. Symmetric form: x_m x_n = x_n x_m, so the strict lower triangle is stored
once, without its factor 1/sqrt(2): 1 + K + K (K + 1) / 2 features (153 instead of 273 for K = 16).
"""

import jax.numpy as jnp
import numpy as np

from based_jax.ops.core.op import op
from based_jax.typing import Array, Float
from based_jax.validate import expect_array


@op()
def taylor_features(x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    """Return the full map [1, x / K^(1/4), vec(x x^T) / sqrt(2 K)], quadratic part row-major.

    This is the authors' layout, used by the states of their checkpoints and by the torch fixtures.
    """
    width = x.shape[-1]
    x = x * width**-0.25
    outer = x[..., :, None] * x[..., None, :] * 2**-0.5
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, outer.reshape(*x.shape[:-1], width**2)], axis=-1)


@op()
def symmetric_taylor_features(x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    """Return the compact map [1, x, x^2 / sqrt(2), x_m x_n for n < m (row-major)], x scaled by K^(-1/4).

    Rows of the triangle are slices times a column, so neither pass needs gathers or scatters, which made the
    backward pass of an indexed form slower (measured on a CPU).
    """
    width = x.shape[-1]
    x = x * width**-0.25
    triangle = [x[..., m : m + 1] * x[..., :m] for m in range(1, width)]
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, x * x * 2**-0.5, *triangle], axis=-1)


def taylor_size(width: int) -> int:
    """Return the size of the full map: 1 + K + K^2."""
    return 1 + width + width**2


def symmetric_taylor_size(width: int) -> int:
    """Return the size of the symmetric map: 1 + K + K (K + 1) / 2."""
    return 1 + width + width * (width + 1) // 2


def taylor_similarity(products: Float[Array, "... N M"], width: int) -> Float[Array, "... N M"]:
    """Return 1 + s + s^2 / 2 with s = products / sqrt(K); at least 1/2, so a normaliser never vanishes."""
    s = products * width**-0.5
    return 1 + s + s * s / 2


@op()
def symmetric_to_full(features: Float[Array, "... F"], width: int) -> Float[Array, "... D"]:
    """Turn symmetric Taylor features, or sums of them, into the full layout of `taylor_features`.

    Linear in its input, so a stored state converts the same way (feature axis last).

    Raises:
        ValueError: the last axis is not `symmetric_taylor_size(width)` long.
    """
    expect_array("features", features, (*[None] * (features.ndim - 1), symmetric_taylor_size(width)))
    constant_and_linear, diagonal, triangle = jnp.split(features, [1 + width, 1 + 2 * width], axis=-1)
    rows, columns = np.tril_indices(width, -1)
    square = jnp.zeros((*features.shape[:-1], width, width), features.dtype)
    square = square.at[..., np.arange(width), np.arange(width)].set(diagonal)
    triangle = triangle * 2**-0.5
    square = square.at[..., rows, columns].set(triangle).at[..., columns, rows].set(triangle)
    return jnp.concatenate([constant_and_linear, square.reshape(*features.shape[:-1], width**2)], axis=-1)
