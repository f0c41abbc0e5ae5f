"""Depthwise causal convolution over a few tokens, with its state (Based, section 4.2).

    y[t] = sum_{j < T} kernel[T - 1 - j] * x[t - j] + bias

The last tap multiplies the current token, as in torch's Conv1d with left padding. The state is the last
T - 1 inputs.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from based_jax.ops.core import sharding
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.core.implementations import choose, implementation_for
from based_jax.ops.core.op import body, expect_state, op, stateful_op
from based_jax.ops.core.products import PendingNorm, is_alone, launched, product
from based_jax.ops.core.stream import Stream, advance, continue_from, init_stream
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
    """Return the state before the first token."""
    return ShortConvState(jnp.zeros((batch_size, taps - 1, channels), dtype), init_stream(batch_size))


@stateful_op(tokens=("x", "segment_ids", "mask"))
def short_conv(
    x: Float[Array, "B N E"],
    kernel: Float[Array, "T E"],
    bias: Float[Array, " E"] | None = None,
    *,
    initial_state: ShortConvState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Float[Array, "B N E"] | tuple[Float[Array, "B N E"], ShortConvState]:
    """Convolve each channel with its own taps; return y, (B, N, E).

    Shared arguments, results and errors: `help(based_jax.ops)`. Taps do not reach across a segment's start.

    Args:
        x: inputs.
        kernel: taps, oldest first.
        bias: added to every output.
    """
    expect_array("x", x, ("B", "N", "E"), "floating")
    batch, length, channels = x.shape
    expect_array("kernel", kernel, ("T", channels), "floating")
    taps = kernel.shape[0]
    if bias is not None:
        expect_array("bias", bias, (channels,), "floating")
    if taps > 1:
        expect_state(initial_state, inputs=(batch, taps - 1, channels))
    call = continue_from(initial_state, batch, length, segment_ids, mask)
    x = call.unpadded(x)
    if initial_state is not None:
        history = initial_state.inputs
    elif call.follows_shards:
        history = sharding.halo(x, taps - 1)
    else:
        history = None

    kernel = kernel.astype(x.dtype)
    before = jnp.zeros((batch, taps - 1, channels), x.dtype) if history is None else history.astype(x.dtype)
    padded = jnp.concatenate([before, x], axis=1)
    age = call.tokens.positions  # tokens of the same segment before this one
    # In a fresh call without segments the history before the first token is zeros and needs no mask.
    bounded = call.before is not None or segment_ids is not None
    wide = accumulation_dtype(x)

    def convolved(x: Array, padded: Array, kernel: Array) -> Array:
        y = jnp.zeros((), wide) if bias is None else bias.astype(x.dtype).astype(wide)
        for back in range(taps):
            tap = kernel[taps - 1 - back].astype(wide)
            if history is None:
                # The product moves, not x: the gradient of the taps then reads x as it is, and XLA's CPU
                # compiler stores no moved copies for it.
                term = lax.pad(tap * x, jnp.zeros((), wide), [(0, 0, 0), (back, -back, 0), (0, 0, 0)])
            else:
                term = tap * padded[:, taps - 1 - back : taps - 1 - back + length]
            if back and bounded:
                term = jnp.where((age >= back)[..., None], term, 0)
            y = y + term
        return y.astype(x.dtype)

    if x.dtype != wide:  # the backward pass keeps the inputs, not their wide copies
        convolved = cast(Any, jax.checkpoint)(convolved, prevent_cse=False)
    y = convolved(x, padded, kernel)
    if not return_state:
        return y

    if mask is None:
        recent = padded[:, length:]
    else:
        after = mask.sum(axis=1, dtype=jnp.int32)[:, None] + jnp.arange(taps - 1)
        recent = jnp.take_along_axis(padded, after[..., None], axis=1)
    return y, ShortConvState(recent.astype(before.dtype if history is None else history.dtype), call.after)


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
    """Return each token's predecessor in its own segment, (B, N, E), as RWKV's mixers need it (section 3.1).

    This is the convolution with the taps (1, 0); the first token of a segment gets 0. Shared arguments,
    results and errors: `help(based_jax.ops)`.
    """
    expect_array("x", x, ("B", "N", "E"), "floating")
    taps = jnp.zeros((2, x.shape[-1]), x.dtype).at[0].set(1)
    options: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask}
    return body(short_conv)(x, taps, initial_state=initial_state, return_state=return_state, **options)


def _supports_step(kernel: str, inner: Array, taps: Array) -> str | None:
    return pallas_kernels.supports_conv_step(inner, taps)


@op("pallas", "xla", supports=_supports_step)
def short_conv_step(
    inner: Float[Array, "B 2 E"],
    kernel: Float[Array, "T E"],
    state: ShortConvState,
    bias: Float[Array, " E"] | None = None,
    *,
    gated: bool = False,
    implementation: str | None = None,
) -> tuple[Float[Array, "B E"], ShortConvState]:
    """Take one step of silu(conv(inner[:, 0]) + bias), times inner[:, 1] if `gated`.

    Args:
        inner: the inputs of one token per row.
        kernel, bias: see `short_conv`.
        state: from `init_short_conv_state` or an earlier call.
        implementation: "pallas", one kernel that also updates the state in place (2 to 8 taps); "xla",
            `short_conv`; None for the best.

    Returns:
        y, (B, E), and the new state.
    """
    expect_array("inner", inner, ("B", 2, "E"), "floating")
    expect_array("kernel", kernel, ("T", inner.shape[-1]), "floating")
    if len(kernel) > 1:
        expect_state(state, inputs=(inner.shape[0], len(kernel) - 1, inner.shape[-1]))
    taps, refusal = kernel.astype(inner.dtype), _refusal(state)
    if choose("short_conv_step", inner, taps, implementation=implementation, unsupported=refusal) == "pallas":
        step = functools.partial(pallas_kernels.conv_step, inner, gated=gated)
        return cast(Any, _by_kernel(step, taps, state, bias))
    conv, state = body(short_conv)(inner[:, :1], kernel, bias, initial_state=state, return_state=True)
    y = jax.nn.silu(conv[:, 0])
    return (y * inner[:, 1] if gated else y), state


def projected_conv_step(
    x: Float[Array, "B 1 K"] | PendingNorm,
    weights: Float[Array, "K columns"],
    added: Float[Array, " columns"] | None,
    *,
    kernel: Float[Array, "T E"],
    state: ShortConvState,
    bias: Float[Array, " E"] | None = None,
) -> tuple[Float[Array, "B 1 E"], ShortConvState]:
    """Take a gated `short_conv_step` of x @ weights + added, two halves of E columns.

    One launch computes it where a kernel would compute the products, and another one the step.
    """
    taps, halves = kernel.astype(x.dtype), weights.T.reshape(2, -1, len(weights))
    inner = jax.ShapeDtypeStruct((x.shape[0], *halves.shape[:2]), x.dtype)
    chosen = implementation_for("short_conv_step", inner, taps, unsupported=_refusal(state))
    if chosen == "pallas" and is_alone():
        biases = None if added is None else added.astype(x.dtype).reshape(2, -1)
        step = functools.partial(launched, pallas_kernels.conv_row_product, x, halves, added=biases)
        if (found := _by_kernel(step, taps, state, bias)) is not None:
            return found[0].reshape(1, 1, -1), found[1]
    products = product(x, weights, added).reshape(inner.shape)
    y, state = short_conv_step(products, kernel, state, bias, gated=True)
    return y[:, None], state


def _refusal(state: ShortConvState) -> str | None:
    return "the kernel takes no float64 state" if state.inputs.dtype == jnp.float64 else None


def _by_kernel(
    step: Callable[..., Any], taps: Array, state: ShortConvState, bias: Array | None
) -> tuple[Array, ShortConvState] | None:
    """Return the outputs and the next state that a kernel computes, or None if it returns None."""
    bias, age = None if bias is None else bias.astype(taps.dtype), state.stream.length - state.stream.start
    found = step(history=state.inputs, age=age, taps=taps, bias=bias)
    return found and (found[0], ShortConvState(found[1], body(advance)(state.stream, len(age), 1)[1]))
