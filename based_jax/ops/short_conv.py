"""Depthwise causal convolution over a few tokens, with its state (Based, section 4.2).

    y[t] = sum_{j < T} kernel[T - 1 - j] * x[t - j] + bias

The last tap multiplies the current token, as in torch's Conv1d with left padding. The state is the last
T - 1 inputs.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops import context_parallel
from based_jax.ops.eager import compiled
from based_jax.ops.stream import Stream, advance, init_stream, stream_of
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShortConvState:
    """The last T - 1 inputs of each row, oldest first, zeros before the first token."""

    inputs: Float[Array, "B T-1 E"]
    stream: Stream


def init_short_conv_state(
    batch_size: int, channels: int, taps: int, dtype: Any = jnp.float32
) -> ShortConvState:
    """The state before the first token."""
    return ShortConvState(jnp.zeros((batch_size, taps - 1, channels), dtype), init_stream(batch_size))


@context_parallel.splits("x", "segment_ids", "mask")
@compiled
def short_conv(
    x: Float[Array, "B N E"],
    kernel: Float[Array, "T E"],
    bias: Float[Array, " E"] | None = None,
    *,
    initial_state: ShortConvState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Any:
    """Convolve each channel with its own taps.

    Args:
        x: inputs.
        kernel: taps, oldest first.
        bias: added to every output.
        initial_state: continue from here; None starts with zeros.
        return_state: also return the state behind the last real token.
        segment_ids: (B, N) integers; taps do not reach across a boundary.
        mask: (B, N) booleans, right padding: masked tokens do not enter the state.

    Returns:
        y: (B, N, E) in the dtype of x, or ``(y, state)`` with `return_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong shape or dtype.
    """
    expect_array("x", x, ("B", "N", "E"), "floating")
    batch, length, channels = x.shape
    expect_array("kernel", kernel, ("T", channels), "floating")
    taps = kernel.shape[0]
    if bias is not None:
        expect_array("bias", bias, (channels,), "floating")
    state = initial_state
    before = stream_of(state, batch, length, segment_ids, mask)
    if state is None:
        history = jnp.zeros((batch, taps - 1, channels), x.dtype)
        if context_parallel.is_split():
            history = context_parallel.halo(x, taps - 1)
    else:
        history = state.inputs
        if taps > 1:
            expect_array("initial_state.inputs", history, (batch, taps - 1, channels), "floating")
    places, stream = advance(before, batch, length, segment_ids, mask)

    kernel = kernel.astype(x.dtype)
    padded = jnp.concatenate([history.astype(x.dtype), x], axis=1)
    age = places.positions  # tokens of the same segment before this one
    # In a fresh call without segments the history before the first token is zeros: nothing to hide.
    bounded = before is not None or segment_ids is not None
    y = jnp.zeros_like(x) if bias is None else jnp.broadcast_to(bias.astype(x.dtype), x.shape)
    for back in range(taps):
        tap = padded[:, taps - 1 - back : taps - 1 - back + length]
        if back and bounded:
            tap = jnp.where((age >= back)[..., None], tap, 0)
        y = y + kernel[taps - 1 - back] * tap
    if not return_state:
        return y

    if mask is None:
        recent = padded[:, length:]
    else:
        behind = mask.sum(axis=1, dtype=jnp.int32)[:, None] + jnp.arange(taps - 1)
        recent = jnp.take_along_axis(padded, behind[..., None], axis=1)
    return y, ShortConvState(recent.astype(history.dtype), stream)
