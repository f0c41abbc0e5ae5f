"""Attend from few queries to a long cache block by block of its slots, for CPUs.

XLA's CPU compiler multiplies arrays whose batch axes come first, in float32: a product with the whole cache,
(B, W, G, K), copies all of it, and so every step of decoding would. The copy of a block stays in the caches:
a step of attn-tiny with a cache of 2,048 slots takes 2.5 ms instead of 4.5.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.dtypes import accumulation_dtype, finfo
from based_jax.ops.core.transforms import cond
from based_jax.typing import Array, Float, Int

BLOCK = 256
"""Slots per block."""

AttendTo: TypeAlias = Callable[[Array, Array, Array], Any]
"""keys (B, M, G, K), values (B, M, G, V), the index of their tokens (rows, M), negative for none -> outputs
(B, N, H, V), logarithms of the sums of exponentials (B, N, H)"""


def attend_by_key_blocks(
    attend_to: AttendTo,
    k: Float[Array, "B W G K"],
    v: Float[Array, "B W G V"],
    key_index: Int[Array, "rows W"],
) -> tuple[Float[Array, "B N H V"], Float[Array, "B N H"]]:
    """Return `attend_to` of all keys, from its results for blocks of them; skip blocks without keys."""
    slots = k.shape[1]
    size = min(BLOCK, slots)

    def step(nothing: None, first: Array) -> tuple[None, Any]:
        begin = jnp.minimum(first, slots - size)

        def block(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, begin, size, axis=1)

        # The last block may begin before `first`, among keys of the one before it.
        index = jnp.where(begin + jnp.arange(size) >= first, block(key_index), -1)

        def attend() -> Any:
            return attend_to(block(k), block(v).astype(accumulation_dtype(v)), index)

        y, log_sum = jax.eval_shape(attend)
        nothing_seen = jnp.zeros(y.shape, y.dtype), jnp.full(log_sum.shape, finfo(log_sum.dtype).min)
        return nothing, cond((index >= 0).any(), attend, lambda: nothing_seen)

    _, (y, log_sum) = lax.scan(step, None, jnp.arange(0, slots, size))
    return merge(y, log_sum), jax.nn.logsumexp(log_sum, axis=0)


def merge(y: Float[Array, "parts *rows V"], log_sum: Float[Array, "parts *rows"]) -> Float[Array, "*rows V"]:
    """Merge attention to disjoint sets of keys, from the outputs and log-sums of each."""
    weights = jax.nn.softmax(log_sum, axis=0)
    return (weights[..., None] * y.astype(weights.dtype)).sum(axis=0).astype(y.dtype)
