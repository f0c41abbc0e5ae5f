"""Token shift: return each token's predecessor, as RWKV's mixers need it (RWKV, section 3.1).

    y[t] = x[t - 1], 0 at the start of a segment

This is the short convolution with the taps (1, 0), and has its state: the last token.
"""

from typing import Any

import jax.numpy as jnp

from based_jax.ops.core.op import body, stateful_op
from based_jax.ops.short_conv import ShortConvState, init_short_conv_state, short_conv
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array


def init_token_shift_state(batch_size: int, channels: int, dtype: Any = jnp.float32) -> ShortConvState:
    """Return the state before the first token."""
    return init_short_conv_state(batch_size, channels, 2, dtype)


@stateful_op(tokens=("x", "segment_ids", "mask"))
def token_shift(
    x: Float[Array, "B N E"],
    *,
    initial_state: ShortConvState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Float[Array, "B N E"] | tuple[Float[Array, "B N E"], ShortConvState]:
    """Return each token's predecessor in its own segment, (B, N, E).

    Shared arguments, results and errors: `help(based_jax.ops)`.
    """
    expect_array("x", x, ("B", "N", "E"), "floating")
    taps = jnp.zeros((2, x.shape[-1]), x.dtype).at[0].set(1)
    options: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask}
    return body(short_conv)(x, taps, initial_state=initial_state, return_state=return_state, **options)
