"""Keep tokens that are NaN or infinite from reaching outputs that do not depend on them.

Programs multiply irrelevant values by 0: scores of other documents and of later tokens, decays across a
segment's start, the rest of a chunk. This fails for NaN, because 0 NaN = NaN. So a mixer replaces such values
with zeros, and sets the outputs that depend on them to NaN. A value whose third power overflows counts as not
a number: Mamba's writes (step size, input and its map) and Taylor's features would be inf.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.arrays import finfo
from based_jax.ops.core.stream import Stream, TokenPositions, is_not_right_padded
from based_jax.typing import Array, Bool, Float


def is_number(x: Float[Array, "*axes"]) -> Bool[Array, "*axes"]:
    """Return whether each value is finite and at most 2^42 (float64: 2^341), so that its cube is finite."""
    wide = finfo(jnp.promote_types(x.dtype, jnp.float32))
    # In float16 2^42 would be infinite.
    return jnp.abs(x) <= min(2.0 ** (wide.maxexp // 3), float(finfo(x.dtype).max))


def numbers(x: Float[Array, "B N D"], mask: Bool[Array, "B N"] | None) -> Float[Array, "B N D"]:
    """Return x with zeros in padding and where it is not a number."""
    kept = is_number(x)
    return jnp.where(kept if mask is None else kept & mask[..., None], x, 0)


def nan_unless(good: Bool[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return y, and NaN where `good`, which broadcasts to y, is False.

    NaN is computed as 0 / 0: `jax.debug_nans` would report a constant in every call that is not compiled as
    one program, but reports this one only where it reaches y.
    """
    return jnp.where(good, y, 0 / jnp.asarray(good, y.dtype))


def broken_tokens(
    bad: Bool[Array, "B N"], positions: TokenPositions, before: Stream | None, after: Stream, causal: bool
) -> tuple[Bool[Array, "B N"], Bool[Array, " B"]]:
    """Return which tokens are broken: NaN or infinite themselves, or after such a token of their document.

    If a row's mask is not right padding, all its tokens are broken: under `jit` no error can be raised.
    `bad` are the tokens that are not numbers; a token sees its whole document unless `causal`. The second
    result is for the documents after the call.
    """
    if positions.mask is not None:  # rows without right padding have no valid result
        bad = (bad | is_not_right_padded(positions.mask)[:, None]) & positions.mask
    index, start = positions.index, positions.start
    last = lax.cummax(jnp.where(bad, index, -1), axis=1)
    broken = last >= start
    ends_broken = last[:, -1] >= after.start
    if before is not None:
        broken |= broken_before(positions, before)
        ends_broken |= after.broken
    return (broken if causal else _anywhere(broken, start)), ends_broken


def broken_before(positions: TokenPositions, before: Stream) -> Bool[Array, "B N"]:
    """Return which tokens follow a broken token of their document in an earlier call."""
    return before.broken[:, None] & (positions.start == before.start[:, None])


def with_broken(state: Any, broken: Bool[Array, " B"]) -> Any:
    """Return the state with the broken documents recorded in its streams."""

    def mark(node: Any) -> Any:
        return dataclasses.replace(node, broken=broken) if isinstance(node, Stream) else node

    return jax.tree.map(mark, state, is_leaf=lambda node: isinstance(node, Stream))


def _anywhere(broken: Bool[Array, "B N"], start: Array) -> Bool[Array, "B N"]:
    """Return whether each token's document is broken at its end."""
    length = broken.shape[1]
    start = jnp.broadcast_to(start, broken.shape)
    ends = jnp.concatenate([start[:, 1:] != start[:, :-1], jnp.ones_like(broken[:, :1])], axis=1)
    end = lax.cummin(jnp.where(ends, jnp.arange(length), length), axis=1, reverse=True)
    return jnp.take_along_axis(broken, end, axis=1)
