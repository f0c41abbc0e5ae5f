"""Tokens that are NaN or infinite reach no output but those that depend on them.

Programs multiply what must not matter by 0: scores of other documents and of later tokens, decays across a
border, the rest of a chunk. That is no answer for NaN, because 0 NaN = NaN. So a mixer computes with zeros in
the place of what is no number, and the outputs that depend on it are NaN. A value whose third power
overflows is none: what Mamba writes (step size, input and its map) and Taylor's features read would be inf.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax.ops.core.dtypes import finfo
from based_jax.ops.core.stream import Stream, TokenPositions, is_not_right_padded
from based_jax.typing import Array, Bool, Float


def is_number(x: Float[Array, "*axes"]) -> Bool[Array, "*axes"]:
    """Whether each value is finite and of a third power within float32 (float64): at most 2^42 (2^341)."""
    wide = finfo(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.abs(x) <= 2.0 ** (wide.maxexp // 3)


def numbers(x: Float[Array, "B N D"], mask: Bool[Array, "B N"] | None) -> Float[Array, "B N D"]:
    """x with zeros for padding, and for what is no number."""
    kept = is_number(x)
    return jnp.where(kept if mask is None else kept & mask[..., None], x, 0)


def nan_unless(good: Bool[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return y, and NaN where `good`, which broadcasts to y, is False.

    NaN is computed, 0 / 0: under `jax.debug_nans` a constant would be reported in every call that is not
    compiled as one program, and this one only where it reaches y.
    """
    return jnp.where(good, y, 0 / good.astype(y.dtype))


def broken_tokens(
    bad: Bool[Array, "B N"], places: TokenPositions, before: Stream | None, after: Stream, causal: bool
) -> tuple[Bool[Array, "B N"], Bool[Array, " B"]]:
    """Return whether a token that is no number is before each token of its document, or is the token itself.

    In a row whose mask is not right padding all tokens count as such: under `jit` no error can be raised.

    Args:
        bad: tokens of a call that are no numbers.
        places: positions of its tokens.
        before, after: the streams before and after it.
        causal: False where a token sees its whole document.

    Returns:
        For each token, and for the documents after the call.
    """
    if places.mask is not None:  # one that is not right padding has no answer
        bad = (bad | is_not_right_padded(places.mask)[:, None]) & places.mask
    index, start = places.index, places.start
    last = lax.cummax(jnp.where(bad, index, -1), axis=1)
    broken = last >= start
    ends_broken = last[:, -1] >= after.start
    if before is not None:
        broken |= before.broken[:, None] & (start == before.start[:, None])
        ends_broken |= after.broken
    return (broken if causal else _anywhere(broken, start)), ends_broken


def with_broken(state: Any, broken: Bool[Array, " B"]) -> Any:
    """Return a state whose streams record which rows' documents are broken."""

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
