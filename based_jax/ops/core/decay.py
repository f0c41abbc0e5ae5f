"""Products of gates between the tokens of a chunk, from logarithms without division or cancellation.

    between(j, i) = exp(sum of g_s over j < s <= i)        inclusive: the step of the reader counts
    between(j, i) = exp(sum of g_s over j < s < i)         exclusive: it does not

exp(G_i - G_j) of a running sum G would be shorter, but after nearly closed gates G is large: the difference
lost 8e-4 in float32, and is NaN if a gate is exactly 0 (-inf minus -inf). Dividing by a decayed product
overflows. Here every exponent is a sum of terms <= 0.

Gates are (..., C, K), one per channel, or (..., C, 1), one per head; leading axes broadcast.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.typing import Array, Float
from based_jax.validate import expect_array

BLOCK = 4
"""Most tokens whose pairs are computed channel by channel; other pairs are matmuls."""


def expect_log_decay(log_decay: Array, batch: int, length: int, *rest: tuple[int, ...]) -> None:
    """Check log-gates of shape (B, N, *one of `rest`), whose first two axes may be 1."""
    full, shape = (batch, length), np.shape(log_decay)
    sizes = [1 if shape[axis : axis + 1] == (1,) else most for axis, most in enumerate(full)]
    fitting = [each for each in rest if shape == (*sizes, *each)]
    if not fitting and len(rest) > 1:
        shapes = " or ".join(str((*full, *each)) for each in rest)
        raise ValueError(f"log_decay has shape {shape}: expected {shapes}; the first two may be 1")
    expect_array("log_decay", log_decay, (*sizes, *[*fitting, *rest][0]), "floating")


def since_start(log_decay: Float[Array, "... C K"], inclusive: bool = True) -> Float[Array, "... C K"]:
    """Return the decay from the start of the chunk to each token."""
    return jnp.exp(_running(log_decay, -2, inclusive))


def until_end(log_decay: Float[Array, "... C K"]) -> Float[Array, "... C K"]:
    """Return the decay from each token to the end of the chunk."""
    after = jnp.concatenate([log_decay[..., 1:, :], jnp.zeros_like(log_decay[..., :1, :])], axis=-2)
    return jnp.exp(lax.cumsum(after, axis=after.ndim - 2, reverse=True))


def across(log_decay: Float[Array, "... C K"]) -> Float[Array, "... K"]:
    """Return the decay over the whole chunk."""
    return jnp.exp(jnp.sum(log_decay, axis=-2))


def between(log_decay: Float[Array, "... C"], inclusive: bool = True) -> Float[Array, "... C C"]:
    """Return the decay from key j (last axis) to query i; arbitrary above the diagonal."""
    return jnp.exp(_pair_sums(log_decay[..., None], inclusive)[..., 0])


def pair_products(
    x: Float[Array, "... C K"],
    y: Float[Array, "... C K"],
    log_decay: Float[Array, "... C channels"],
    inclusive: bool = True,
) -> Float[Array, "... C C"]:
    """Return sum_k x_ik y_jk between_k(j, i); arbitrary (but finite) above the diagonal.

    With a gate per channel, the tokens are halved until at most `BLOCK` or an odd number is left. Pairs of
    both halves are a matmul of x decayed since the middle and y decayed until it.
    """
    if log_decay.shape[-1] == 1:
        return (x @ y.mT) * between(log_decay[..., 0], inclusive)
    size = x.shape[-2]
    if size % 2 or size <= BLOCK:
        return jnp.einsum("...ik,...jk,...ijk->...ij", x, y, jnp.exp(_pair_sums(log_decay, inclusive)))

    def halves(a: Array) -> Array:
        return a.reshape(*a.shape[:-2], 2, size // 2, a.shape[-1])

    def first(a: Array) -> Array:
        return a[..., 0, :, :]

    def second(a: Array) -> Array:
        return a[..., 1, :, :]

    x, y, g = halves(x), halves(y), halves(log_decay)
    near = pair_products(x, y, g, inclusive)
    far = (second(x) * since_start(second(g), inclusive)) @ (first(y) * until_end(first(g))).mT
    rows = [[first(near), jnp.zeros_like(far)], [far, second(near)]]
    return jnp.concatenate([jnp.concatenate(row, axis=-1) for row in rows], axis=-2)


def _pair_sums(g: Float[Array, "... C K"], inclusive: bool) -> Float[Array, "... C C K"]:
    """Return the sums of the steps after key j up to query i."""
    size = g.shape[-2]
    steps = jnp.where(jnp.tri(size, k=-1, dtype=bool)[..., None], g[..., :, None, :], 0)
    return _running(steps, -3, inclusive)


def _running(g: Array, axis: int, inclusive: bool) -> Array:
    """Return running sums, with or without the element itself."""
    if inclusive:
        return jnp.cumsum(g, axis=axis)
    before = lax.slice_in_dim(g, 0, g.shape[axis] - 1, axis=axis)
    zero = jnp.zeros_like(lax.slice_in_dim(g, 0, 1, axis=axis))
    return jnp.cumsum(jnp.concatenate([zero, before], axis=axis), axis=axis)
