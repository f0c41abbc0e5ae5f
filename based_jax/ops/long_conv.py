"""Causal convolution with as many taps as tokens, by FFT.

    y[t] = sum_{s < T, s <= t} kernel[s] * x[t - s] + skip * x[t]

Tap 0 multiplies the current token (in `short_conv` the last tap does). The transform is long enough to avoid
wrap-around (in the authors' code, explicit filters longer than the text leak its end into its beginning). An
FFT mixes all tokens, so causality holds up to rounding only, and an inf or NaN affects its whole row.

A Toeplitz product has no state of fixed size: the state holds the last inputs.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.kv_cache import expect_capacity, latest, put
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.ops.core.op import body, expect_state, expect_state_to_return, stateful_op
from based_jax.ops.core.stream import Stream, continue_from, init_stream
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array

NEAR = 8
"""Taps that packed rows apply one by one, before the levels of `_packed`; a power of two."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LongConvState:
    """The last W inputs of each row, a ring buffer. With T <= W + 1 taps a row may have any length."""

    inputs: Float[Array, "B W E"]
    stream: Stream


def init_long_conv_state(
    batch_size: int, slots: int, channels: int, dtype: Any = jnp.float32
) -> LongConvState:
    """Return the state before the first token."""
    return LongConvState(jnp.zeros((batch_size, slots, channels), dtype), init_stream(batch_size))


@stateful_op("xla", "reference", tokens=("x", "segment_ids", "mask"))
def long_conv(
    x: Float[Array, "B N E"],
    kernel: Float[Array, "T E"],
    *,
    skip: Float[Array, " E"] | None = None,
    initial_state: LongConvState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N E"] | tuple[Float[Array, "B N E"], LongConvState]:
    """Convolve each channel with its own long filter, in float32 (float64 for float64 inputs).

    Returns y, (B, N, E). With more than W + 1 taps, all outputs of a row that exceeds its state's capacity
    are NaN: under `jit` no error can be raised. Shared arguments, results and errors: `help(based_jax.ops)`.

    Args:
        x: inputs.
        kernel: taps, the current token's first. Taps beyond the number of tokens are ignored.
        skip: factor of the current input, added to tap 0.
        initial_state: continue from here; one token is then a dot product with the stored inputs.
        return_state: needs `initial_state`.
        segment_ids: taps do not reach across a segment's start. This costs log2(N) transforms.
        implementation: "reference" (Toeplitz matrices), "xla" (FFT) or None for the best.

    Raises:
        ValueError: a text longer than the state, if lengths are known.
    """
    chosen = choose("long_conv", x, kernel, implementation=implementation)
    expect_array("x", x, ("B", "N", "E"), "floating")
    batch, length, channels = x.shape
    expect_array("kernel", kernel, ("T", channels), "floating")
    if skip is not None:
        expect_array("skip", skip, (channels,), "floating")
    state, taps = initial_state, kernel.shape[0]
    expect_state_to_return(state, return_state)
    expect_state(state, inputs=(batch, "W", channels))
    slots = 0 if state is None else state.inputs.shape[1]
    if state is None and sharding.is_sharded():
        return _of_channels(x, kernel, skip, segment_ids, mask, chosen)
    if state is not None:
        expect_array("state length", state.stream.length, (batch,))
        if taps - 1 > slots:
            what = f"max_length = {slots} tokens, the size of the state"
            expect_capacity(state.stream, length, mask, slots, what)

    call = continue_from(state, batch, length, segment_ids, mask)
    dtype = accumulation_dtype(x)
    values, kernel = call.unpadded(x.astype(dtype)), kernel.astype(dtype)
    start = None if call.start is None else jnp.broadcast_to(call.start, (batch, length))
    whole, kept = values, min(slots, taps - 1)
    if state is not None:
        whole, start = _after_past(state, kept, values, start)
    y = _convolve(whole, kernel[: kept + length], start, kept, chosen)
    if skip is not None:
        y = y + skip.astype(dtype) * values
    if state is not None and taps - 1 > slots:
        y = nan_unless((call.after.length <= slots)[:, None, None], y)
    y = y.astype(x.dtype)
    if state is None or not return_state:
        return y
    return y, LongConvState(put(state.inputs, x, call.tokens, call.after), call.after)


def _after_past(
    state: LongConvState, kept: int, values: Float[Array, "B N E"], start: Int[Array, "B N"] | None
) -> tuple[Float[Array, "B kept+N E"], Int[Array, "B kept+N"] | None]:
    """Return the state's last inputs, one segment with zeros before it, and the call's; and their starts."""
    past, index = latest(state.inputs, state.stream.length, kept)
    past = jnp.where((index >= state.stream.start[:, None])[..., None], past, 0).astype(values.dtype)
    if start is not None:
        start = jnp.pad(jnp.where(start < 0, 0, start + kept), [(0, 0), (kept, 0)])
    return jnp.concatenate([past, values], axis=1), start


def _convolve(
    x: Float[Array, "B M E"],
    kernel: Float[Array, "T E"],
    start: Int[Array, "B M"] | None,
    kept: int,
    chosen: str,
) -> Float[Array, "B N E"]:
    """Return the outputs of all tokens but the first `kept`."""
    if chosen == "reference":
        return _toeplitz(x, kernel, start)[:, kept:]
    if x.shape[1] == kept + 1:
        return _newest(x, kernel, start)
    if start is not None:
        return _packed(x, kernel, start)[:, kept:]
    size = fft_size(x.shape[1] + len(kernel) - 1 - kept)  # wrap-around affects the unused outputs only
    return circular_convolution(kernel, x, size)[:, kept : x.shape[1]]


def _of_channels(
    x: Array, kernel: Array, skip: Array | None, segment_ids: Array | None, mask: Array | None, chosen: str
) -> Float[Array, "B N E"]:
    """Convolve sharded sequences: exchange shards of all channels for whole sequences of some, and back."""
    share = sharding.to_channels(x)
    kernel, skip = jax.tree.map(sharding.own_channels, (kernel, skip))
    segment_ids, mask = sharding.whole((segment_ids, mask))
    with sharding.whole_sequences():
        y = body(long_conv)(
            share, kernel, skip=skip, segment_ids=segment_ids, mask=mask, implementation=chosen
        )
    return sharding.to_tokens(y, x.shape[-1])


def _toeplitz(
    x: Float[Array, "B N E"], kernel: Float[Array, "T E"], start: Int[Array, "B N"] | None
) -> Float[Array, "B N E"]:
    """Return T x with T[t, j] = kernel[t - j] if token t sees j, else 0."""
    index = jnp.arange(x.shape[1])
    lag = index[:, None] - index
    visible = (lag >= 0) & (lag < kernel.shape[0])
    matrix = jnp.where(visible[..., None], kernel[jnp.clip(lag, 0, kernel.shape[0] - 1)], 0)
    if start is None:
        return jnp.einsum("tje,bje->bte", matrix, x)
    sees = (index >= start[..., None]).astype(x.dtype)
    return jnp.einsum("btj,tje,bje->bte", sees, matrix, x)


def _newest(
    x: Float[Array, "B N E"], kernel: Float[Array, "T E"], start: Int[Array, "B N"] | None
) -> Float[Array, "B 1 E"]:
    length, taps = x.shape[1], kernel.shape[0]
    index = jnp.arange(length - taps, length)
    x = x[:, length - taps :]
    if start is not None:
        x = jnp.where((index >= start[:, -1:])[..., None], x, 0)
    return jnp.sum(x * kernel[::-1], axis=1, keepdims=True)


def _packed(
    x: Float[Array, "B N E"], kernel: Float[Array, "T E"], start: Int[Array, "B N"]
) -> Float[Array, "B N E"]:
    """Convolve within segments.

    The pairs of tokens of a row form a triangle, tiled by squares: at each level, the left half of each block
    of 2 C tokens acts on its right half. A square connects only the segment on both sides of its middle, so
    masking the inputs before that segment's start and the outputs after its end is exact. The smallest tiles,
    at the diagonal, are computed tap by tap.
    """
    batch, length, channels = x.shape
    half = NEAR
    while half < length:
        half *= 2
    total, half = half, NEAR
    padding = total - length
    x = jnp.pad(x, [(0, 0), (0, padding), (0, 0)])
    start = jnp.pad(start, [(0, 0), (0, padding)], mode="edge")
    kernel = jnp.pad(kernel, [(0, max(total - kernel.shape[0], 0)), (0, 0)])

    index = jnp.arange(total)
    y = kernel[0] * x
    for lag in range(1, NEAR):
        sees = (index % NEAR >= lag) & (index - lag >= start)
        shifted = jnp.pad(x[:, :-lag], [(0, 0), (lag, 0), (0, 0)])
        y = y + kernel[lag] * jnp.where(sees[..., None], shifted, 0)

    while half < total:
        blocks = (batch, -1, 2, half)
        left = x.reshape(*blocks, channels)[:, :, 0]
        starts, indices = start.reshape(blocks), index.reshape(-1, 2, half)
        middle = indices[:, 1, :1]
        left = jnp.where((indices[:, 0] >= starts[:, :, 1, :1])[..., None], left, 0)
        # Lags are 1 to 2 C - 1, so a transform of size 2 C wraps around into the left half only.
        right = circular_convolution(kernel[: 2 * half], left, fft_size(2 * half))[:, :, half:]
        right = jnp.where((starts[:, :, 1] < middle)[..., None], right, 0)
        both = jnp.stack([jnp.zeros_like(right), right], axis=2)
        y = y + both.reshape(batch, total, channels)
        half *= 2
    return y[:, :length]


def circular_convolution(
    kernel: Float[Array, "... T _"], x: Float[Array, "... N _"], size: int
) -> Float[Array, "... {size} _"]:
    """Convolve each column of x with the kernel's (or its only one), both zero-filled to `size` >= N and T.

    y_i = sum_j a_{(i-j) mod size} x_j
    """
    spectrum = jnp.fft.rfft(kernel, size, axis=-2)
    return jnp.fft.irfft(jnp.fft.rfft(x, size, axis=-2) * spectrum, size, axis=-2)


def fft_size(size: int) -> int:
    """Return the smallest fast length >= size for an FFT: 2^a, 3 2^a, 5 2^a, 9 2^a or 15 2^a."""
    powers = (odd << max(-(-size // odd) - 1, 0).bit_length() for odd in (1, 3, 5, 9, 15))
    return min(powers)
