"""Dense softmax attention of a block of queries, with the matrix products and dtypes of a fused kernel.

The gradient takes operands in the inputs' dtype and sums in float32, as the forward pass does. JAX's gradient
would multiply bfloat16 inputs with float32 cotangents, which tensor cores do at a fraction of their rate.
The weights are saved between the passes, rounded to the values' dtype.

    s = scale q k^T,  w = softmax(s),  y = w v
    ds = w (dy v^T - rowsum(dy y) + dlog_sum),  dq = scale ds k,  dk = scale ds^T q,  dv = w^T dy
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import accumulation_dtype, finfo
from based_jax.ops.core.transforms import cond, with_gradient
from based_jax.typing import Array, Bool, Float, Int


def _forward(q: Array, k: Array, v: Array, visible: Array, scale: Array) -> tuple[Any, Any]:
    dtype, grouped = scale.dtype, _grouped(q, k)
    scores = jnp.einsum("...ngrk,...mgk->...grnm", grouped, k, preferred_element_type=dtype) * scale
    visible = visible[..., None, None, :, :]
    scores = jnp.where(visible, scores, finfo(dtype).min)
    largest = scores.max(axis=-1, keepdims=True)
    exponentials = jnp.exp(scores - largest)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = jnp.where(visible, exponentials / total, 0).astype(v.dtype)
    y = jnp.einsum("...grnm,...mgv->...ngrv", weights, v, preferred_element_type=dtype)
    y = y.reshape(*q.shape[:-1], v.shape[-1]).astype(v.dtype)
    log_sum = jnp.moveaxis((largest + jnp.log(total))[..., 0], -1, -3).reshape(q.shape[:-1])
    return (y, log_sum), (q, k, v, y, weights, scale)


def _backward(saved: Any, gradients: Any) -> tuple[Any, ...]:
    q, k, v, y, weights, scale = saved
    dtype, grouped = scale.dtype, _grouped(q, k)
    dy, dlog_sum, y = (_grouped(x, k) for x in (gradients[0], gradients[1][..., None], y))
    dweights = jnp.einsum("...ngrv,...mgv->...grnm", dy, v, preferred_element_type=dtype)
    # rowsum(dy y) equals rowsum(w dy v^T), with fewer terms.
    mean = (dy.astype(dtype) * y.astype(dtype)).sum(axis=-1, keepdims=True) - dlog_sum
    dscores = (weights.astype(dtype) * (dweights - jnp.moveaxis(mean, -4, -2))).astype(q.dtype)
    dq = jnp.einsum("...grnm,...mgk->...ngrk", dscores, k, preferred_element_type=dtype)
    dk = jnp.einsum("...grnm,...ngrk->...mgk", dscores, grouped, preferred_element_type=dtype)
    dv = jnp.einsum("...grnm,...ngrv->...mgv", weights, dy, preferred_element_type=dtype)
    dscale = (dq * grouped).sum()
    dq = (dq * scale).reshape(q.shape).astype(q.dtype)
    return dq, (dk * scale).astype(k.dtype), dv.astype(v.dtype), None, dscale


def _grouped(x: Float[Array, "... N H D"], k: Float[Array, "... M G K"]) -> Float[Array, "... N G R D"]:
    """Group the query heads by the key head that they share."""
    *lead, heads, width = x.shape
    return x.reshape(*lead, k.shape[-2], heads // k.shape[-2], width)


def attend_block(
    q: Float[Array, "... N H K"],
    k: Float[Array, "... M G K"],
    v: Float[Array, "... M G V"],
    visible: Bool[Array, "... N M"],
    scale: Any,
) -> tuple[Float[Array, "... N H V"], Float[Array, "... N H"]]:
    """Return y (0 for a query without visible keys) and the logarithm of each query's sum of exponentials."""
    return _attend(q, k.astype(q.dtype), v, visible, jnp.asarray(scale, accumulation_dtype(v)))


@with_gradient(_forward, _backward)
def _attend(q: Array, k: Array, v: Array, visible: Array, scale: Array) -> tuple[Array, Array]:
    return _forward(q, k, v, visible, scale)[0]


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
