"""Rotary position embedding: half-split (GPT-NeoX) or interleaved (GPT-J), on a head's first channels."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.fields import is_finite
from based_jax.ops.core.op import op
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_array, expect_integer


@op()
def rotary(
    x: Float[Array, "B N H D"],
    positions: Int[Array, "rows N"],
    *,
    dim: int | None = None,
    base: float = 10000.0,
    interleaved: bool = False,
    frequencies: Sequence[float] | None = None,
) -> Float[Array, "B N H D"]:
    """Rotate pairs of channels by position * base^(-2 i / dim).

    Args:
        x: queries or keys.
        positions: (B, N) or (1, N) integers.
        dim: channels to rotate, D by default. An odd value rotates dim + 1 channels with the frequencies of
            dim, as flash-attention does (attn-1b: 35 of 70).
        interleaved: pair channels (0, 1), (2, 3), ... instead of (0, r), (1, r + 1), ...
        frequencies: of each pair, in radians per position, in place of base^(-2 i / dim).

    Angles are exact to 4e-7 at any position: whole turns are removed in integers. Implementations that
    multiply in float32, such as the fused decoding kernels, have phase errors of about position * 6e-8.

    Raises:
        TypeError, ValueError: an argument of the wrong shape or dtype; more channels than a head has.
    """
    expect_array("x", x, ("B", "N", "H", "D"), "floating")
    batch, length, _, width = x.shape
    rows = 1 if np.shape(positions)[:1] == (1,) else batch
    expect_array("positions", positions, (rows, length), "integer")
    dim = width if dim is None else dim
    expect_integer("dim", dim, 1)
    pairs = (dim + 1) // 2
    expected = f"1 to the head width {width} (an odd dim takes dim + 1)"
    expect(2 * pairs <= width, "dim", dim, expected)
    expect(base > 0, "base", base, "above 0")
    turning = base ** (-np.arange(0, dim, 2) / dim)
    if frequencies is not None:
        are_numbers = isinstance(frequencies, list | tuple) and all(map(is_finite, frequencies))
        expected = f"None or a tuple of {pairs} numbers, one for each pair"
        expect(are_numbers and len(frequencies) == pairs, "frequencies", frequencies, expected)
        turning = np.asarray(frequencies)
    angles = _angles(positions, turning)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    cos, sin = (y[:, :, None, :].astype(x.dtype) for y in (cos, sin))
    rotated, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        one, two = rotated[..., ::2], rotated[..., 1::2]
        turned = jnp.stack([one * cos - two * sin, one * sin + two * cos], axis=-1).reshape(rotated.shape)
    else:
        one, two = rotated[..., :pairs], rotated[..., pairs:]
        turned = jnp.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)
    return jnp.concatenate([turned, rest], axis=-1)


def _angles(positions: Int[Array, "rows N"], frequencies: np.ndarray) -> Float[Array, "rows N pairs"]:
    """Return position * frequency without whole turns, in [-pi, pi].

    A frequency is a 64-bit binary fraction of a turn: integer overflow drops whole turns.
    """
    turns = [int(frequency / (2 * np.pi) * 2**64) % 2**64 for frequency in frequencies]
    high, low = (np.array([turn >> bits & 0xFFFFFFFF for turn in turns], np.uint32) for bits in (32, 0))
    positions = positions[..., None].astype(jnp.int32)
    distance = lax.bitcast_convert_type(jnp.abs(positions), jnp.uint32)
    turned = lax.bitcast_convert_type(distance * high + _high_word(distance, low), jnp.int32)
    return jnp.where(positions < 0, -1, 1) * turned.astype(jnp.float32) * np.float32(2 * np.pi / 2**32)


def _high_word(a: Array, b: np.ndarray) -> Any:
    """Return the upper 32 bits of the products of 32-bit integers."""
    half = np.uint32(0xFFFF)
    (a0, a1), (b0, b1) = ((x & half, x >> np.uint32(16)) for x in (a, b))
    middle = a1 * b0 + (a0 * b0 >> np.uint32(16))
    return a1 * b1 + (middle >> np.uint32(16)) + (a0 * b1 + (middle & half) >> np.uint32(16))
