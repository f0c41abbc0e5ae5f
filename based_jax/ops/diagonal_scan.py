"""Linear recurrences with an elementwise state: Mamba's selective scan and diagonal S4 variants.

    h_t = a_t * h_{t-1} + b_t,        y_t = readout(h_t, inputs_t)

The state is much larger than a token ((E, S) numbers in Mamba), so a and b are formed, scanned and read out
chunk by chunk, and the history of states is never in memory as a whole. Inside a chunk the pairs (a, b) are
combined as a tree, (a2 a1, a2 b1 + b2). Nothing is divided, so a closed gate, a = 0, is exact; it also starts
a new segment. (Only an overflow survives it: 0 times inf is NaN.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

import pallas_kernels
from based_jax.ops.core.arrays import accumulation_dtype, lift, map_arrays, with_gradient
from based_jax.ops.core.chunks import scan_chunks
from based_jax.ops.core.implementations import choose
from based_jax.ops.core.op import body, expect_chunk_size, expect_state, stateful_op
from based_jax.ops.core.platforms import platform_of
from based_jax.ops.core.stream import Stream, continue_from, init_stream
from based_jax.typing import Array, Bool, Float, Int
from based_jax.validate import expect_array

CHUNK = 64
"""Tokens per chunk."""

CHUNK_ON_GPU = 256
"""Those on a GPU: by count a training step of a Liquid S4 layer (16 x 2,048 tokens) has 1,637 launches in
chunks of 64, and 533 in these."""

KERNEL_FROM = 16
"""Fewest tokens for which None picks the kernel: it has a layout of the state of its own."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagonalScanState:
    """The state after the last token; float32 or complex64 (twice as wide for float64 inputs)."""

    h: Array
    """(B, *state)"""
    stream: Stream


def init_diagonal_scan_state(
    batch_size: int, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> DiagonalScanState:
    """Return the state of the given shape before the first token."""
    return DiagonalScanState(jnp.zeros((batch_size, *shape), dtype), init_stream(batch_size))


Y = TypeVar("Y")
Terms = Callable[[Any], tuple[Array, Array]]
Readout = Callable[[Array, Any], Y]


def _supports(kernel: str, x: Array, dt: Array, B: Array) -> str | None:
    return pallas_kernels.supports_selective_scan(x, dt, B)


def _fastest(found: str, x: Array, dt: Array, B: Array) -> str:
    return "xla" if x.shape[1] < KERNEL_FROM else found


@stateful_op(
    "pallas",
    "xla",
    "reference",
    supports=_supports,
    fastest=_fastest,
    tokens=("x", "dt", "B", "C", "segment_ids", "mask"),
)
def selective_scan(
    x: Float[Array, "B N E"],
    dt: Float[Array, "B N E"],
    A: Float[Array, "E S"],
    B: Float[Array, "B N S"],
    C: Float[Array, "B N S"],
    D: Float[Array, " E"] | None = None,
    *,
    initial_state: DiagonalScanState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N E"] | tuple[Float[Array, "B N E"], DiagonalScanState]:
    """Run Mamba's state space model, whose step size, input and output maps depend on the token.

        h_t = exp(dt_t A) * h_{t-1} + dt_t x_t B_t,        y_t = h_t . C_t + D * x_t

    (Mamba, Algorithm 2; its code takes the exact step for A and Euler's for B.) Returns y, (B, N, E); the
    state's h is (B, E, S). Shared arguments, results and errors: `help(based_jax.ops)`.

    Args:
        x: inputs, one per channel.
        dt: step sizes, >= 0, after the softplus.
        A: decay rates, <= 0, of the S states of each channel.
        B, C: input and output maps, shared by the channels.
        D: factor of the skip connection; None for no skip connection.
        chunk_size: tokens per chunk of "xla"; default 64, on a GPU 256. "reference" goes token by token.
        implementation: "pallas", the fused GPU kernel (S a power of two up to 32, E a multiple of 32); "xla";
            "reference"; or None for the best: from 16 tokens on the kernel where it can, else "xla".
    """
    expect_array("x", x, ("B", "N", "E"), "floating")
    batch, length, channels = x.shape
    expect_array("dt", dt, x.shape, "floating")
    expect_array("A", A, (channels, "S"), "floating")
    for name, array in (("B", B), ("C", C)):
        expect_array(name, array, (batch, length, A.shape[1]), "floating")
    if D is not None:
        expect_array("D", D, (channels,), "floating")
    expect_state(initial_state, h=(batch, *A.shape))
    expect_chunk_size(chunk_size, CHUNK)
    unsupported = None
    if initial_state is not None and initial_state.h.dtype != jnp.float32:
        unsupported = f"the kernel takes no {initial_state.h.dtype} state"
    elif C.dtype == jnp.float64:
        unsupported = "the kernel takes no float64 C"
    chosen = choose("selective_scan", x, dt, B, implementation=implementation, unsupported=unsupported)
    if chosen == "pallas":
        return _fused(x, dt, A, B, C, D, initial_state, return_state, segment_ids, mask)
    dtype = accumulation_dtype(x)
    rate, skip = A.astype(dtype), None if D is None else D.astype(dtype)  # the scan sums their gradients

    def terms(tokens: Any) -> tuple[Array, Array]:
        x, dt, B, _ = (array.astype(dtype) for array in tokens)
        return jnp.exp(dt[..., None] * rate), (dt * x)[..., None] * B[..., None, :]

    def readout(h: Array, tokens: Any) -> Array:
        y = jnp.einsum("bces,bcs->bce", h, tokens[3].astype(dtype))
        if skip is not None:
            y = y + skip * tokens[0].astype(dtype)
        return y.astype(x.dtype)

    options: dict[str, Any] = {"initial_state": initial_state, "segment_ids": segment_ids, "mask": mask}
    options |= {"chunk_size": chunk_size, "implementation": chosen}
    return body(diagonal_scan)((x, dt, B, C), terms, readout, return_state=return_state, **options)


def _fused(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None,
    state: DiagonalScanState | None,
    return_state: bool,
    segment_ids: Array | None,
    mask: Array | None,
) -> Any:
    """Run the kernel. A masked token has dt = 0, which keeps the state; the first of a segment forgets it."""
    batch, length, channels = x.shape
    call = continue_from(state, batch, length, segment_ids, mask)
    x, dt, B, C = call.unpadded((x, dt, B, C))
    keep = None
    if call.start is not None:
        keep = jnp.broadcast_to(call.start != jnp.arange(length), (batch, length)).astype(jnp.float32)
    rate = A.astype(jnp.float32)
    skip = jnp.zeros((channels,), jnp.float32) if D is None else D.astype(jnp.float32)

    def run(h: Array, x: Array) -> tuple[Array, Array]:
        return pallas_kernels.selective_scan(x, dt, rate, B, C, skip, h, keep)

    h = jnp.zeros((batch, *A.shape), jnp.float32) if state is None else state.h
    h = call.prefix(lambda h: run(h, x), h, lambda: run(jnp.ones_like(h), jnp.zeros_like(x))[1], jnp.multiply)
    y, h = run(h, x)
    return (y, DiagonalScanState(h, call.after)) if return_state else y


@stateful_op("xla", "reference", tokens=("inputs", "segment_ids", "mask"))
def diagonal_scan(
    inputs: Any,
    terms: Terms,
    readout: Readout[Y],
    *,
    initial_state: DiagonalScanState | None = None,
    return_state: bool = False,
    segment_ids: Int[Array, "B N"] | None = None,
    mask: Bool[Array, "B N"] | None = None,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> Y | tuple[Y, DiagonalScanState]:
    """Scan h_t = a_t * h_{t-1} + b_t from a state and read it out, one chunk at a time.

    Shared arguments, results and errors: `help(based_jax.ops)`; chunk_size: `selective_scan`.

    Args:
        inputs: a pytree of (B, N, ...) arrays.
        terms: maps the inputs of some tokens, (B, C, ...), to a and b, both (B, C, *state) in the state's
            real or complex dtype.
        readout: maps states (B, C, *state) and the inputs of the same tokens to outputs, a pytree of
            (B, C, ...) arrays.
    """
    chosen = choose("diagonal_scan", implementation=implementation)
    batch, length = jax.tree.leaves(inputs)[0].shape[:2]
    default = CHUNK_ON_GPU if platform_of(jax.tree.leaves(inputs)) == "gpu" else CHUNK
    size = even_chunks(length, expect_chunk_size(chunk_size, default))
    call = continue_from(initial_state, batch, length, segment_ids, mask)
    inputs = call.unpadded(inputs)

    factor, wanted = jax.eval_shape(terms, map_arrays(lambda x: x[:, :1], inputs))
    expect_array("a of terms", factor, wanted.shape)
    if initial_state is None:
        h = jnp.zeros((batch, *wanted.shape[2:]), wanted.dtype)
    else:
        expect_array("initial_state.h", initial_state.h, (batch, *wanted.shape[2:]))
        h = initial_state.h.astype(wanted.dtype)

    def run(h: Array, writes: bool = True) -> tuple[Any, Array]:
        def step(h: Array, tokens: Any, start: Array | None, mask: Array | None) -> tuple[Any, Array]:
            a, b = (jnp.asarray(term) for term in terms(tokens))
            b = b if writes else jnp.zeros_like(b)
            if start is not None:
                a = jnp.where(lift(start == jnp.arange(a.shape[1]), a), 0, a)
            if mask is not None:
                a, b = jnp.where(lift(mask, a), a, 1), jnp.where(lift(mask, b), b, 0)
            history = scan_along(a, b.at[:, 0].add(a[:, 0] * h))
            return readout(history, tokens), history[:, -1]

        chunk = 1 if chosen == "reference" else size
        return scan_chunks(step, h, inputs, chunk_size=chunk, start=call.start, mask=mask)

    y, h = run(call.prefix(run, h, lambda: run(jnp.ones_like(h), writes=False)[1], jnp.multiply))
    return (y, DiagonalScanState(h, call.after)) if return_state else y


def even_chunks(length: int, chunk_size: int) -> int:
    """Return the size (at most `chunk_size`) of equal chunks that needs the least padding."""
    return -(-length // -(-length // chunk_size))


def _scan(a: Array, b: Array, reverse: bool = False) -> Array:
    return lax.associative_scan(_combine, (a, b), axis=1, reverse=reverse)[1]


def _forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    h = _scan(a, b)
    return h, (a, h)


def _backward(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    # The transpose is the same recurrence in reverse, at half the cost of differentiating the tree.
    a, h = residuals
    of_b = _scan(jnp.roll(a, -1, axis=1), g, reverse=True)  # the first factor, a_0, has no effect
    of_a = (of_b * jnp.roll(h, 1, axis=1)).at[:, 0].set(0)
    return of_a, of_b


@with_gradient(_forward, _backward)
def _scan_along(a: Array, b: Array) -> Array:
    return _scan(a, b)


def scan_along(a: Array, b: Array) -> Array:
    """Scan h_t = a_t * h_{t-1} + b_t along axis 1 as a tree, with h_{-1} = 0.

    For more than one step it has no forward-mode derivative.
    """
    return b if b.shape[1] == 1 else _scan_along(a, b)


def _combine(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    (a1, b1), (a2, b2) = first, second
    return a2 * a1, a2 * b1 + b2
