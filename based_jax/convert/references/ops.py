"""Wrap our ops in the argument layout of the torch functions that computed the op-level fixtures."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.ops.feature_maps import FeatureMap
from based_jax.typing import Array, Float

FLA_EPS = 1e-6
"""Added to the normaliser by fla's functions and kernels, whatever `eps` is."""


def _squares(x: Float[Array, "... K"]) -> Float[Array, "... F"]:
    """Compute [x_m^2, sqrt(2) x_m x_n for n < m], x scaled by K^(-1/4)."""
    width = x.shape[-1]
    x = x * width**-0.25
    triangle = [2**0.5 * x[..., m : m + 1] * x[..., :m] for m in range(1, width)]
    return jnp.concatenate([x * x, *triangle], axis=-1)


REBASED = FeatureMap(
    _squares, lambda products, width: products**2 / width, lambda width: width * (width + 1) // 2
)
"""phi(q) . phi(k) = s^2, s = q . k / sqrt(K): the map of ReBased without its learned scales."""


def _with_state(op: Callable[..., Any]) -> Callable[..., tuple[Array, Array]]:
    def run(*inputs: Array) -> tuple[Array, Array]:
        y, state = op(*inputs, return_state=True)
        return y, state.kv

    return run


def _heads_first(op: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an op to take arrays (B, H, N, ...), as in torch."""

    def run(*inputs: Array) -> Any:
        found = op(*(x.swapaxes(1, 2) for x in inputs))
        return (found[0].swapaxes(1, 2), *found[1:]) if isinstance(found, tuple) else found.swapaxes(1, 2)

    return run


def _retention(q: Array, k: Array, v: Array) -> Array:
    return ops.linear_recurrence(q, k, v, ops.fixed_log_decay(q.shape[2])[None, None])


def _selective_scan(
    u: Array, delta: Array, A: Array, B: Array, C: Array, D: Array, z: Array, delta_bias: Array
) -> tuple[Array, Array]:
    """Compute Mamba's gated scan; arrays are (batch, channels, length)."""
    u, delta, B, C, z = (x.swapaxes(1, 2) for x in (u, delta, B, C, z))
    y, state = ops.selective_scan(u, jax.nn.softplus(delta + delta_bias), A, B, C, D, return_state=True)
    return (y * jax.nn.silu(z)).swapaxes(1, 2), state.h


def _ssd(x: Array, dt: Array, A: Array, B: Array, C: Array, D: Array, dt_bias: Array) -> tuple[Array, Array]:
    """Compute Mamba-2's recurrence; its state is (B, H, V, K)."""
    dt = jax.nn.softplus(dt + dt_bias)
    y, state = ops.linear_recurrence(C, B, x * dt[..., None], dt * A, scale=1.0, return_state=True)
    return y + D[:, None] * x, state.kv.mT


OPS: dict[str, Callable[..., Any]] = {
    "based_naive": _heads_first(functools.partial(ops.taylor_attention, eps=FLA_EPS)),
    "delta_rule": _heads_first(_with_state(ops.delta_rule)),
    "dplr": _heads_first(_with_state(ops.generalized_delta_rule)),  # diagonal plus low rank
    "gated_delta_rule": _with_state(ops.delta_rule),
    "gla": _with_state(ops.linear_recurrence),
    "rebased_naive": _heads_first(functools.partial(ops.linear_attention, feature_map=REBASED, eps=FLA_EPS)),
    "retention": _heads_first(_retention),
    "selective_scan": _selective_scan,
    "simple_gla": _with_state(ops.linear_recurrence),  # a gate per head, not per channel
    "ssd": _ssd,
}
"""A fixture's `op` -> function of its arguments in order and layout that returns y, or (y, final state)."""


class TorchOp(nn.Module):
    """An op as a module without parameters."""

    op: str

    def __call__(self, *inputs: Array) -> Any:
        """Apply the op to the fixture's inputs."""
        return OPS[self.op](*inputs)
