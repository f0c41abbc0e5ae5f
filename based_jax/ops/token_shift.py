"""The previous token: what RWKV's mixers blend with the current one (RWKV, section 3.1; spec of Zoology 3.9).

    y[t] = x[t - 1], 0 at the start of a segment

It is the short convolution with the taps (1, 0), and its state is that convolution's: the last token.
"""

from typing import Any

import jax.numpy as jnp

from based_jax.ops.eager import compiled
from based_jax.ops.short_conv import ShortConvState, init_short_conv_state, short_conv
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array


def init_token_shift_state(batch_size: int, channels: int, dtype: Any = jnp.float32) -> ShortConvState:
    """The state before the first token."""
    return init_short_conv_state(batch_size, channels, 2, dtype)


@compiled
def token_shift(
    x: Float[Array, "B N E"],
    *,
    initial_state: ShortConvState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Any:
    """Each token's predecessor in its own segment.

    Args:
        x: inputs.
        initial_state: continue from here; None starts behind nothing.
        return_state: also return the state behind the last real token.
        segment_ids: (B, N) integers; nothing is handed over a boundary.
        mask: (B, N) booleans, right padding: masked tokens do not enter the state.

    Returns:
        y: (B, N, E) in the dtype of x, or ``(y, state)`` with `return_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong shape or dtype.
    """
    expect_array("x", x, ("B", "N", "E"), "floating")
    taps = jnp.zeros((2, x.shape[-1]), x.dtype).at[0].set(1)
    return short_conv(
        x, taps, initial_state=initial_state, return_state=return_state, segment_ids=segment_ids, mask=mask
    )
