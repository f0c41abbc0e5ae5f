"""Rotary position embedding: half-split (GPT-NeoX) or interleaved (GPT-J), on a head's first channels."""

import jax.numpy as jnp

from based_jax.ops.eager import compiled
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_array


@compiled
def rotary(
    x: Float[Array, "B N H D"],
    positions: Int[Array, "rows N"],
    *,
    dim: int | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
) -> Float[Array, "B N H D"]:
    """Rotate pairs of channels by position * base^(-2 i / dim).

    Args:
        x: queries or keys.
        positions: (B, N) or (1, N) integers.
        dim: channels that take part, D by default. An odd value rotates dim + 1 channels with the
            frequencies of dim, as flash-attention does (attn-1b: 35 of 70).
        interleaved: pair channels (0, 1), (2, 3), ... instead of (0, r), (1, r + 1), ...

    Angles are computed in float32 like the reference implementations'; at position p expect a phase noise
    of about p * 6e-8 between implementations.

    Raises:
        TypeError, ValueError: an argument of the wrong shape or dtype; more channels than a head has.
    """
    expect_array("x", x, ("B", "N", "H", "D"), "floating")
    batch, length, _, width = x.shape
    rows = 1 if positions.shape[:1] == (1,) else batch
    expect_array("positions", positions, (rows, length), "integer")
    dim = width if dim is None else dim
    pairs = (dim + 1) // 2
    expect(
        dim > 0 and 2 * pairs <= width, "dim", dim, f"1 to the head width {width} (an odd dim takes dim + 1)"
    )
    frequencies = base ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    cos, sin = (f(angles)[:, :, None, :].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    rotated, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        one, two = rotated[..., ::2], rotated[..., 1::2]
        turned = jnp.stack([one * cos - two * sin, one * sin + two * cos], axis=-1).reshape(rotated.shape)
    else:
        one, two = rotated[..., :pairs], rotated[..., pairs:]
        turned = jnp.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)
    return jnp.concatenate([turned, rest], axis=-1)
