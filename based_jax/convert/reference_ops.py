"""The op-level fixtures: our ops behind the argument layout of the torch functions that made the numbers."""

from collections.abc import Callable
from typing import Any

import jax
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


def _gla(q: Array, k: Array, v: Array, log_decay: Array) -> tuple[Array, Array]:
    """Gates per channel, or per head ("simple")."""
    y, state = ops.linear_recurrence(q, k, v, log_decay, return_state=True)
    return y, state.kv


def _retention(q: Array, k: Array, v: Array) -> Array:
    q, k, v = map(_heads_first, (q, k, v))
    return _heads_first(ops.linear_recurrence(q, k, v, ops.fixed_log_decay(q.shape[2])[None, None]))


def _delta_rule(q: Array, k: Array, v: Array, beta: Array) -> tuple[Array, Array]:
    q, k, v = map(_heads_first, (q, k, v))
    y, state = ops.delta_rule(q, k, v, beta.swapaxes(1, 2), return_state=True)
    return _heads_first(y), state.kv


def _gated_delta_rule(q: Array, k: Array, v: Array, beta: Array, log_decay: Array) -> tuple[Array, Array]:
    y, state = ops.delta_rule(q, k, v, beta, log_decay, return_state=True)
    return y, state.kv


def _dplr(q: Array, k: Array, v: Array, a: Array, b: Array, log_decay: Array) -> tuple[Array, Array]:
    """Diagonal plus low rank: the generalised delta rule."""
    y, state = ops.generalized_delta_rule(*map(_heads_first, (q, k, v, a, b, log_decay)), return_state=True)
    return _heads_first(y), state.kv


def _selective_scan(
    u: Array, delta: Array, A: Array, B: Array, C: Array, D: Array, z: Array, delta_bias: Array
) -> tuple[Array, Array]:
    """Mamba's scan with its gate; arrays are (batch, channels, length)."""
    u, delta, B, C, z = (x.swapaxes(1, 2) for x in (u, delta, B, C, z))
    y, state = ops.selective_scan(u, jax.nn.softplus(delta + delta_bias), A, B, C, D, return_state=True)
    return (y * jax.nn.silu(z)).swapaxes(1, 2), state.h


def _ssd(x: Array, dt: Array, A: Array, B: Array, C: Array, D: Array, dt_bias: Array) -> tuple[Array, Array]:
    """Mamba-2's recurrence; its state is (B, H, V, K)."""
    dt = jax.nn.softplus(dt + dt_bias)
    y, state = ops.linear_recurrence(C, B, x * dt[..., None], dt * A, scale=1.0, return_state=True)
    return y + D[:, None] * x, state.kv.mT


def _heads_first(x: Array) -> Array:
    """(B, N, H, D) <-> (B, H, N, D)."""
    return x.swapaxes(1, 2)


OPS: dict[str, Callable[..., Any]] = {
    "based_naive": _based_naive,
    "delta_rule": _delta_rule,
    "dplr": _dplr,
    "gated_delta_rule": _gated_delta_rule,
    "gla": _gla,
    "rebased_naive": _rebased_naive,
    "retention": _retention,
    "selective_scan": _selective_scan,
    "simple_gla": _gla,
    "ssd": _ssd,
}
"""By the fixture's `op`: arguments in the fixture's order and layout; y, or (y, final state)."""


class TorchOp(nn.Module):
    """An op as a module without parameters."""

    op: str

    def __call__(self, *inputs: Array) -> Any:
        """Apply the op to the fixture's inputs."""
        return OPS[self.op](*inputs)
