"""Time-invariant state space with diagonal complex transitions, S4D (H3, section 3).

    h_t = a h_{t-1} + x_t;   y_t = 2 Re sum_s w_s h_{t,s} + skip x_t

a and w are complex, with S modes per head, each of which represents itself and its conjugate. The same map is
a convolution with the kernel K_l = 2 Re sum_s w_s a_s^l, used in calls without a state; calls with a state
run in chunks. Powers of a are computed from its logarithm: powers of the rounded a would lose a digit per
decade of lags. Complex numbers are pairs along a last axis of size 2.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.core.chunks import begins, chunk_mask, heads_first, scan_chunks, scan_tokens
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.op import (
    body,
    expect_chunk_size,
    expect_state,
    expect_state_to_return,
    op,
    stateful_op,
)
from based_jax.ops.core.stream import Continuation, Stream, continue_from, init_stream
from based_jax.ops.long_conv import long_conv
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array

CHUNK = 64
"""Tokens per chunk in calls with a state."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagonalSSMState:
    """The modes of each channel over its row's current segment; float32 (float64 for float64 inputs)."""

    modes: Float[Array, "B H V S 2"]
    """h, real and imaginary part"""
    stream: Stream


def init_diagonal_ssm_state(
    batch_size: int, num_heads: int, value_size: int, modes: int, dtype: Any = jnp.float32
) -> DiagonalSSMState:
    """Return the state before the first token; `dtype` is float32, or float64 for a float64 computation."""
    shape = (batch_size, num_heads, value_size, modes, 2)
    return DiagonalSSMState(jnp.zeros(shape, dtype), init_stream(batch_size))


@op()
def discretize_bilinear(
    a: Float[Array, "H S 2"], b: Float[Array, "H S 2"], c: Float[Array, "H S 2"], dt: Float[Array, " H"]
) -> tuple[Float[Array, "H S 2"], Float[Array, "H S 2"]]:
    """Return `log_a` and `weight` of h' = a h + b x, y = 2 Re c h by the bilinear rule with step dt.

    exp(log_a) = (1 + dt a / 2) / (1 - dt a / 2),   weight = c b dt / (1 - dt a / 2).
    """
    u, v = (dt[:, None] * a[..., part] / 2 for part in (0, 1))
    u = jnp.where((u == -1) & (v == 0), -1 + 1e-6, u)  # zero has no logarithm
    above, below = (1 + u) ** 2 + v**2, (1 - u) ** 2 + v**2
    # Avoid cancellation both near 1 (small dt) and near 0.
    small = above < below / 2
    log_square = jnp.where(
        small, jnp.log(above) - jnp.log(below), jnp.log1p(jnp.where(small, 0, 4 * u / below))
    )
    log_a = jnp.stack([log_square / 2, jnp.arctan2(2 * v, (1 - u) * (1 + u) - v**2)], axis=-1)
    inverse = jnp.stack([1 - u, v], axis=-1) * (dt[:, None] / below)[..., None]
    return log_a, _product(_product(c, b), inverse)


@op()
def diagonal_ssm_kernel(
    log_a: Float[Array, "H S 2"], weight: Float[Array, "H S 2"], length: int
) -> Float[Array, "N H"]:
    """Return K_l = 2 Re sum_s weight_s a_s^l for l < length, without the (N, H, S) array of all powers."""
    low = 1 << (max(length - 1, 0).bit_length() + 1) // 2  # about the square root
    lows = _powers(log_a, jnp.arange(low)[:, None, None])
    highs = _powers(log_a, low * jnp.arange(-(-length // low))[:, None, None])
    kernel = jnp.einsum("lhsr,chsr->clh", lows, _conjugate(_product(weight, highs)))
    return 2 * kernel.reshape(-1, log_a.shape[0])[:length]


def _powers(log_a: Array, steps: Array) -> Array:
    """Return exp(steps log_a) as pairs; steps broadcasts against log_a without its last axis."""
    radius, angle = jnp.exp(steps * log_a[..., 0]), steps * log_a[..., 1]
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=-1)


def _product(x: Array, y: Array) -> Array:
    """Multiply complex pairs."""
    (a, b), (c, d) = ((z[..., 0], z[..., 1]) for z in (x, y))
    return jnp.stack([a * c - b * d, a * d + b * c], axis=-1)


def _conjugate(x: Array) -> Array:
    """Conjugate pairs: Re(x y) is the inner product of the conjugate of x with y."""
    return x * jnp.asarray([1, -1], x.dtype)


@stateful_op("xla", "reference", tokens=("x", "segment_ids", "mask"))
def diagonal_ssm(
    x: Float[Array, "B N H V"],
    log_a: Float[Array, "H S 2"],
    weight: Float[Array, "H S 2"],
    *,
    skip: Float[Array, " H"] | None = None,
    initial_state: DiagonalSSMState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N H V"] | tuple[Float[Array, "B N H V"], DiagonalSSMState]:
    """Run each of a head's V channels through its S modes; return y, (B, N, H, V).

    Shared arguments, results and errors: `help(based_jax.ops)`.

    Args:
        x: inputs.
        log_a: logarithm of the transition: real part, <= 0, and angle.
        weight: factor of each mode in the output, as `discretize_bilinear` returns it.
        skip: factor of the current input.
        return_state: needs `initial_state`.
        chunk_size: tokens per chunk in calls with a state; default 64.
        implementation: "reference" (token by token), "xla" (FFT, or chunks with a state) or None.
    """
    chosen = choose("diagonal_ssm", x, log_a, weight, implementation=implementation)
    expect_array("x", x, ("B", "N", "H", "V"), "floating")
    batch, length, heads, channels = x.shape
    expect_array("log_a", log_a, (heads, "S", 2), "floating")
    expect_array("weight", weight, log_a.shape, "floating")
    if skip is not None:
        expect_array("skip", skip, (heads,), "floating")
    chunk_size = expect_chunk_size(chunk_size, CHUNK)
    expect_state_to_return(initial_state, return_state)
    shape = (batch, heads, channels, log_a.shape[1], 2)
    expect_state(initial_state, modes=shape)
    call = continue_from(initial_state, batch, length, segment_ids, mask)

    dtype = accumulation_dtype(x)
    values = call.unpadded(x.astype(dtype))
    log_a, weight = log_a.astype(dtype), weight.astype(dtype)
    compute = _token_by_token if chosen == "reference" else _chunked

    def run(modes: Array) -> tuple[Array, Array]:
        return compute(values, log_a, weight, modes, call, chunk_size)

    def operator() -> Array:
        return call.kept(_powers(log_a, call.count[:, None, None]))[:, :, None]

    if call.before is None and chosen == "xla":
        kernel = jnp.repeat(body(diagonal_ssm_kernel)(log_a, weight, length), channels, axis=1)
        flat = values.reshape(batch, length, heads * channels)
        y, modes = body(long_conv)(flat, kernel, segment_ids=segment_ids).reshape(values.shape), None
    else:
        modes = jnp.zeros(shape, dtype) if initial_state is None else initial_state.modes.astype(dtype)
        y, modes = run(call.prefix(run, modes, operator, _product))
    if skip is not None:
        y = y + skip.astype(dtype)[:, None] * values
    y = y.astype(x.dtype)
    return (y, DiagonalSSMState(modes, call.after)) if return_state and modes is not None else y


def _chunked(
    x: Array, log_a: Array, weight: Array, modes: Array, call: Continuation, chunk_size: int
) -> tuple[Array, Array]:
    """Scan in chunks; within a chunk multiply by the kernel's Toeplitz matrix."""
    size = min(chunk_size, x.shape[1])
    powers = _powers(log_a[:, None], jnp.arange(size + 1)[:, None])  # (H, C + 1, S, 2)
    weighted = 2 * _conjugate(_product(weight[:, None], powers))
    kernel, readout = weighted[:, :-1, :, 0].sum(-1), weighted[:, 1:]
    matrix = kernel[:, jnp.maximum(jnp.arange(size)[:, None] - jnp.arange(size), 0)]
    ages = powers[:, -2::-1]

    def step(modes: Array, x: Array, start: Array | None, mask: Array | None) -> tuple[Array, Array]:
        visibility = chunk_mask(size, start, mask)
        x = heads_first(x)
        y = jnp.where(visibility.visible, matrix, 0) @ x
        y = y + visibility.reading(jnp.einsum("hcsr,bhvsr->bhcv", readout, modes))

        x, decay = visibility.entering(x), powers[:, -1]
        if mask is not None:  # the last real token moves to the end, where its power is 0
            count = mask.sum(axis=1)[:, None, None]
            index = jnp.arange(size) - (size - count)
            moved = jnp.take_along_axis(x, jnp.maximum(index, 0)[..., None], axis=2)
            x, decay = jnp.where(index[..., None] >= 0, moved, 0), _powers(log_a, count)
        if visibility.keeps is not None:
            modes = jnp.where(visibility.keeps[..., None, None, None], modes, 0)
        modes = _product(decay[..., None, :, :], modes) + jnp.einsum("hcsr,bhcv->bhvsr", ages, x)
        return heads_first(y), modes

    return scan_chunks(step, modes, x, chunk_size=chunk_size, start=call.start, mask=call.mask)


def _token_by_token(
    x: Array, log_a: Array, weight: Array, modes: Array, call: Continuation, chunk_size: int
) -> tuple[Array, Array]:
    batch, length = x.shape[:2]
    real = jnp.ones((batch, length), bool) if call.mask is None else call.mask
    first = begins(call.start, batch, length)
    one = jnp.ones((), log_a.dtype)
    transition, readout = (z[:, None] for z in (_powers(log_a, one), 2 * _conjugate(weight)))

    def step(modes: Array, token: Any) -> tuple[Array, Array]:
        x, first, real = token
        first, real = (flag[:, None, None, None, None] for flag in (first, real))
        moved = _product(transition, jnp.where(first, 0, modes)).at[..., 0].add(x[..., None])
        modes = jnp.where(real, moved, modes)
        return modes, jnp.sum(readout * modes, axis=(-2, -1))

    return scan_tokens(step, modes, (x, first, real))
