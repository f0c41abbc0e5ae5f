"""Feature maps of linear attention: phi(q) . phi(k) replaces exp(q . k / sqrt(K)).

Zoology's study of maps (its code; Based, figure 3). x is a query or key of K channels:

============  ====================================================================================  =======
name          phi(x)                                                                                F
============  ====================================================================================  =======
taylor        [1, x', x' x'^T / sqrt(2)], x' = x / K^(1/4); see below                               153 (16)
relu          max(x, e)                                                                             K
pos_elu       elu(x) + 1                                                                            K
square        x^2                                                                                   K
squared_map   x^2 / sqrt(2)                                                                         K
identity      x                                                                                     K
full_space    max([x, -x], e)                                                                       2 K
exp_dim       exp(max([x, -x], e))                                                                  2 K
exp_half      exp(x)                                                                                K
exp_max       exp(max([z, -z], e)), z = x - max(x)                                                  2 K
exp_max_half  exp(x - max(x))                                                                       K
softmax_dim   max([softmax(x), softmax(-x)], e)                                                     2 K
softmax_half  max(softmax(x), e)                                                                    K
exp_sum       [s where x >= 0 else e, s where x < 0 else e] of each channel, s = softmax(|x|)       2 K
exp_sum_half  softmax(|x|) where x >= 0, else e                                                     K
cosformer     [r sin a, r cos a], r = relu(x), a = pi t / (2 M) for token t = 1..M                  2 K
performer     exp(W x' - |x'|^2 / 2) / sqrt(F), x' = x / K^(1/4), W random and orthogonal           any
all_poly      ((P x)^2 + R x^2) / sqrt(2), P and R learned                                          any
============  ====================================================================================  =======

Taylor's map (Based, section 4.1) gives 1 + s + s^2 / 2, s = q . k / sqrt(K). Its symmetric form, x_m x_n =
x_n x_m, stores the strict lower triangle once, without its factor 1/sqrt(2): 153 features instead of 273.

e is 1e-12 by default. With identity and all_poly the normaliser may be negative or vanish: outputs can then
be as large as 1 / eps. All others are >= 0 (cosformer: for tokens less than M apart).
"""

import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from based_jax.ops.core.arrays import accumulation_dtype, wide
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.ops.core.op import op
from based_jax.registry import Registry
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_array, shown

__all__ = ["names", "register"]  # of `bj.feature_maps`; all other public names are in `bj.ops`

FLOOR = 1e-12
"""The authors' lower bound e, which keeps sums of features above 0."""

LARGEST_EXPONENT = 30.0
"""Upper bound of exponents (exp(30) = 1e13), so that no input overflows float32. The smallest feature of
exp_dim and exp_max is 1, which float32 cannot resolve next to larger features anyway."""


class FeatureMap(NamedTuple):
    """A map for linear attention and, optionally, a cheaper way to compute similarities in a chunk.

    Bind parameters of a function with `jax.tree_util.Partial`: maps that are made separately are then equal
    and share a compiled program.
    """

    features: Callable[[Float[Array, "... K"]], Float[Array, "... F"]]
    """phi, applied to queries and keys alike"""
    similarity: Callable[[Float[Array, "... N M"], int], Float[Array, "... N M"]] | None
    """phi(q) . phi(k) as a function of the products q . k and the width K; None: from the features"""
    size: Callable[[int], int]
    """F as a function of K"""


def _pos_elu(x: Float[Array, "... K"]) -> Float[Array, "... K"]:
    # exp(x), not expm1(x) + 1, which is 0 or 6e-8 for x < -16.
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


def _exp(x: Float[Array, "... K"]) -> Float[Array, "... K"]:
    return jnp.exp(jnp.minimum(x, LARGEST_EXPONENT))


def _both_signs(floor: float, x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    return jnp.maximum(jnp.concatenate([x, -x], axis=-1), floor)


def _below_largest(x: Float[Array, "... K"]) -> Float[Array, "... K"]:
    return x - x.max(axis=-1, keepdims=True)


def _softmax_dim(floor: float, x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    return jnp.maximum(jnp.concatenate([jax.nn.softmax(x), jax.nn.softmax(-x)], axis=-1), floor)


def _exp_sum(floor: float, x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    """Return the two features of each channel side by side, as in the authors' code."""
    sides = jnp.stack([x >= 0, x < 0], axis=-1) * jax.nn.softmax(jnp.abs(x))[..., None]
    return jnp.maximum(sides.reshape(*x.shape[:-1], -1), floor)


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
    """Return the compact map [1, x, x^2 / sqrt(2), x_m x_n for n < m (row-major)], x scaled by K^(-1/4)."""
    # Slices times a column: gathers, and their scatters backward, were slower on a CPU.
    width = x.shape[-1]
    x = x * width**-0.25
    triangle = [x[..., m : m + 1] * x[..., :m] for m in range(1, width)]
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, x * x * 2**-0.5, *triangle], axis=-1)


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


TAYLOR = FeatureMap(symmetric_taylor_features, taylor_similarity, symmetric_taylor_size)
"""Based's map in the symmetric form, which states store."""


def _map(
    features: Callable[[Array], Array], similarity: Callable[[Array, int], Array] | None = None
) -> FeatureMap:
    return FeatureMap(features, similarity, Partial(operator.mul, 1))


IDENTITY = _map(lambda x: x, lambda products, width: products)
"""The identity; also for queries and keys that are already mapped."""

_WITHOUT_FLOOR: dict[str, FeatureMap] = {
    "taylor": TAYLOR,
    "pos_elu": _map(_pos_elu),
    "square": _map(lambda x: x * x),
    "squared_map": _map(lambda x: x * x * 2**-0.5),
    "identity": IDENTITY,
    "exp_half": _map(_exp),
    "exp_max_half": _map(lambda x: _exp(_below_largest(x))),
}

_WITH_FLOOR: dict[str, tuple[Callable[[float, Array], Array], int]] = {
    "relu": (lambda floor, x: jnp.maximum(x, floor), 1),
    "full_space": (_both_signs, 2),
    "exp_dim": (lambda floor, x: _exp(_both_signs(floor, x)), 2),
    "exp_max": (lambda floor, x: _exp(_both_signs(floor, _below_largest(x))), 2),
    "softmax_dim": (_softmax_dim, 2),
    "softmax_half": (lambda floor, x: jnp.maximum(jax.nn.softmax(x), floor), 1),
    "exp_sum": (_exp_sum, 2),
    "exp_sum_half": (lambda floor, x: jnp.maximum((x >= 0) * jax.nn.softmax(jnp.abs(x)), floor), 1),
}
"""phi and F / K."""

FLOORED = tuple(_WITH_FLOOR)
"""The names of the maps that have a lower bound e."""


def _floored(name: str, floor: float = FLOOR) -> FeatureMap:
    features, ratio = _WITH_FLOOR[name]
    return FeatureMap(Partial(features, floor), None, Partial(operator.mul, ratio))


FEATURE_MAPS: dict[str, FeatureMap] = {**_WITHOUT_FLOOR, **{name: _floored(name) for name in FLOORED}}
"""The maps that are functions of x alone, by name, with the authors' floor."""

PARAMETRIC = ("cosformer", "performer", "all_poly")
"""Names for which the mixer `linear_attention` makes a map from positions, random directions or weights."""


def _accept(name: str, phi: Any) -> FeatureMap:
    expect(name not in PARAMETRIC, "name", name, f"another name than {', '.join(PARAMETRIC)}")
    if isinstance(phi, FeatureMap):
        return phi
    try:
        inspect.signature(phi).bind(None)
    except (TypeError, ValueError) as error:
        expected = "expected a function of one array, (..., K) -> (..., F)"
        raise TypeError(f"feature map {name!r} = {shown(phi)}: {expected}") from error
    return FeatureMap(phi, None, functools.partial(_find_size, name, phi))


@functools.cache
def _find_size(name: str, phi: Callable[[Array], Array], width: int) -> int:
    """Trace a registered function to find its number of features."""
    y: Any = jax.eval_shape(phi, jax.ShapeDtypeStruct((2, 3, width), jnp.float32))
    is_right = hasattr(y, "shape") and len(y.shape) == 3 and y.shape[:2] == (2, 3)
    is_right = is_right and jnp.issubdtype(y.dtype, jnp.floating)
    expect(is_right, f"feature map {name!r} of x, (2, 3, {width}),", y, "floating features, (2, 3, F)")
    return y.shape[-1]


MAPS = Registry("feature_map", "based_jax.feature_maps", _accept, dict(FEATURE_MAPS))

M = TypeVar("M", bound=Callable[..., Array] | FeatureMap)


def register(name: str) -> Callable[[M], M]:
    """Return a decorator that makes a function of (..., K) arrays a feature map with a name.

    The name then works as `feature_map` of the mixers, in `ModelConfig`, checkpoints and commands. The
    function takes queries and keys, any dtype, and returns features (..., F) of each alone; their products
    must be positive, or outputs can be as large as 1 / eps. A `FeatureMap` can be registered too. A notebook
    may register a function again after changing it. An installed package needs no import of it, with this in
    its pyproject.toml:

        [project.entry-points."based_jax.feature_maps"]
        my_map = "my_package.my_module:my_map"

    Args:
        name: lower-case letters, digits and underscores, beginning with a letter.

    Raises:
        TypeError: neither a function of one argument nor a `FeatureMap`.
        ValueError: a name of another form, or one already taken. When the map is first used: its result is
            not an array of floating features, (..., F).
    """
    return MAPS.register(name)


def names() -> tuple[str, ...]:
    """Return the names of the maps that are functions of x alone: built in, registered, or installed."""
    return MAPS.names()


def feature_map(name: str, floor: float = FLOOR) -> FeatureMap:
    """Return the map called `name`, a function of x alone, with e = `floor` if it is in `FLOORED`.

    Raises:
        ValueError: unknown name, or an installed package whose map cannot be imported.
    """
    return _floored(name, floor) if name in FLOORED else MAPS.find(name)


def expect_feature_map(value: FeatureMap) -> None:
    """Check an argument `feature_map`."""
    is_map = isinstance(value, FeatureMap)
    expect(is_map, "feature_map", value, "a FeatureMap, as of based_jax.ops.feature_map(name)")


def performer_map(projection: Float[Array, "F K"]) -> FeatureMap:
    """Return FAVOR+'s map with positive features, for directions as from `orthogonal_features`.

    phi(q) . phi(k) falls like exp(-(|q|^2 + |k|^2) / (2 sqrt(K))): for K = 16 below eps, 1e-12, from norms of
    about 10 on, where the outputs of `linear_attention` tend to 0. Scale such queries and keys.
    """
    expect_array("projection", projection, ("F", "K"), "floating")
    projection = projection.astype(accumulation_dtype(projection))  # scans sum its gradients
    size, width = projection.shape
    return FeatureMap(Partial(_positive_features, projection), None, Partial(size_for, width, size))


def _positive_features(projection: Float[Array, "F K"], x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    size, width = projection.shape
    x = x * width**-0.25
    # Use one exponent, at most |W_f|^2 / 2: separate factors would be infinite and 0 for a long x.
    exponent = x @ projection.astype(x.dtype).T - jnp.sum(x * x, axis=-1, keepdims=True) / 2
    return jnp.exp(exponent) * size**-0.5


def size_for(expected: int, size: int, width: int) -> int:
    """Return the size of a map that was made for queries and keys of the expected width."""
    expect(width == expected, "width of queries and keys", width, f"{expected}, that of the feature map")
    return size


@op()
def orthogonal_features(key: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Float[Array, "F K"]:
    """Draw directions for `performer_map`: orthonormal blocks of K rows, over sqrt(F / K) as in Zoology.

    (FAVOR+ itself draws rows of length about sqrt(K); Zoology keeps length 1 and scales by blocks.)

    Args:
        key: `jax.random.key(seed)`.
        shape: (F, K), number of directions and width of queries and keys.
        dtype: of the result, floating.
    """
    size, width = shape
    keys = jax.random.split(key, -(-size // width))

    wide = jnp.promote_types(dtype, jnp.float32)  # a QR decomposition takes no narrower dtype
    block = functools.partial(jax.nn.initializers.orthogonal(), shape=(width, width), dtype=wide)
    blocks = jax.vmap(block)(keys)
    return (blocks.reshape(-1, width)[:size] * math.sqrt(width / size)).astype(dtype)


def all_poly_map(linear: Float[Array, "F K"], squares: Float[Array, "F K"]) -> FeatureMap:
    """Return the map of learned second-order polynomials ((P x)^2 + R x^2) / sqrt(2), maybe negative."""
    expect_array("linear", linear, ("F", "K"), "floating")
    expect_array("squares", squares, linear.shape, "floating")
    # Scans sum their gradients.
    linear, squares = (x.astype(accumulation_dtype(x)) for x in (linear, squares))
    size, width = linear.shape
    return FeatureMap(Partial(_polynomials, linear, squares), None, Partial(size_for, width, size))


def _polynomials(
    linear: Float[Array, "F K"], squares: Float[Array, "F K"], x: Float[Array, "... K"]
) -> Float[Array, "... F"]:
    first, second = (weight.astype(x.dtype).T for weight in (linear, squares))
    return ((x @ first) ** 2 + (x * x) @ second) * 2**-0.5


@op()
def cosformer_features(
    x: Float[Array, "B N H K"], positions: Int[Array, "rows N"], max_length: int
) -> Float[Array, "B N H F"]:
    """Return cosFormer's features: phi(q_i) . phi(k_j) = relu(q_i) . relu(k_j) cos(pi (i - j) / (2 M)).

    Pass the mapped queries and keys to `linear_attention` with `IDENTITY`.

    Args:
        x: queries or keys.
        positions: (B, N) or (1, N) integers from 0.
        max_length: M, tokens of the longest text.

    Returns:
        (B, N, H, 2 K) in float32 (float64 for float64 x). NaN for positions from M on, where weights may be
        negative.
    """
    expect_array("x", x, ("B", "N", "H", "K"), "floating")
    rows = 1 if np.shape(positions)[:1] == (1,) else x.shape[0]
    expect_array("positions", positions, (rows, x.shape[1]), "integer")
    expect(max_length >= 1, "max_length", max_length, "at least 1")
    dtype = accumulation_dtype(x)
    positions = wide(positions)
    angle = (positions + 1).astype(dtype) * (math.pi / (2 * max_length))
    angle = nan_unless(positions < max_length, angle)[..., None, None]
    x = jax.nn.relu(x.astype(dtype))
    return jnp.concatenate([x * jnp.sin(angle), x * jnp.cos(angle)], axis=-1)
