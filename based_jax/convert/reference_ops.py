"""The op-level fixtures: our ops behind the argument layout of the torch functions that made the numbers."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.ops.feature_maps import FeatureMap
from based_jax.typing import Array, Float

FLA_EPS = 1e-6
"""added to the normaliser by fla's functions"""


def _squares(x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    """[x_m^2, sqrt(2) x_m x_n for n < m], x scaled by K^(-1/4)."""
    width = x.shape[-1]
    x = x * width**-0.25
    triangle = [2**0.5 * x[..., m : m + 1] * x[..., :m] for m in range(1, width)]
    return jnp.concatenate([x * x, *triangle], axis=-1)


REBASED = FeatureMap(
    _squares, lambda products, width: products**2 / width, lambda width: width * (width + 1) // 2
)
"""phi(q) . phi(k) = s^2, s = q . k / sqrt(K): the map of ReBased without its learned scales."""


def _based_naive(q: Array, k: Array, v: Array) -> Array:
    return _heads_first(ops.taylor_attention(*map(_heads_first, (q, k, v)), eps=FLA_EPS))


def _rebased_naive(q: Array, k: Array, v: Array) -> Array:
    q, k, v = map(_heads_first, (q, k, v))
    return _heads_first(ops.linear_attention(q, k, v, feature_map=REBASED, eps=FLA_EPS))


def _heads_first(x: Array) -> Array:
    """(B, N, H, D) <-> (B, H, N, D)."""
    return x.swapaxes(1, 2)


OPS: dict[str, Callable[..., Any]] = {"based_naive": _based_naive, "rebased_naive": _rebased_naive}
"""By the fixture's `op`; arguments in the fixture's order and layout."""


class TorchOp(nn.Module):
    """An op as a module without parameters."""

    op: str

    def __call__(self, *inputs: Array) -> Any:
        """Apply the op to the fixture's inputs."""
        return OPS[self.op](*inputs)
