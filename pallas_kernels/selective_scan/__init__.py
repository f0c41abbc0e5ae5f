"""Mamba's selective scan (Gu and Dao, arXiv 2312.00752, Algorithm 2), with gradients."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.checks import expect, expect_array, unsupported
from pallas_kernels.partition import per_channel
from pallas_kernels.selective_scan import kernel
from pallas_kernels.selective_scan.kernel import AXES, BLOCK, Call, Variant
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "selective_scan", "supports"]

MAX_STATES = 32
"""the states of a channel are in the registers of one thread"""


def supports(x: Any, dt: Any, B: Any) -> str | None:
    """Return why `selective_scan` cannot take x and dt (B, N, E) and B (B, N, S) here, or None if it can."""
    reason = cannot_launch("pallas") or unsupported({"x": x, "dt": dt, "B": B}, 3, {"B": MAX_STATES})
    if reason is None and x.shape[-1] % BLOCK:
        return f"x has {x.shape[-1]} channels; the kernel takes multiples of {BLOCK}"
    if reason is None and (states := B.shape[-1]) & (states - 1):
        return f"a channel has {states} states; the kernel takes powers of two"
    return reason


def facts_of(states: int, kernel: str) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table; `kernel` is "outputs" or "gradients"."""
    return {"states": states, "kernel": kernel}


def selective_scan(
    x: jax.Array,
    dt: jax.Array,
    A: jax.Array,
    B: jax.Array,
    C: jax.Array,
    D: jax.Array,
    h: jax.Array,
    keep: jax.Array | None = None,
    *,
    chunk: int = 64,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute h_t = exp(dt_t A) keep_t h_{t-1} + dt_t x_t B_t and y_t = h_t . C_t + D x_t.

    Arithmetic is float32, y is rounded once. Differentiable in all arrays but keep. Works with rows and
    channels sharded; under `vmap` and for second derivatives a scan in plain operations computes it.

    Args:
        x, dt: (B, N, E); float32, bfloat16 or float16. E is a multiple of 32.
        A: (E, S), S a power of two up to 32.
        B, C: (B, N, S).
        D: (E,).
        h: (B, E, S), the state before the first token.
        keep: (B, N): 0 at tokens that forget the state, 1 at others; None: all remember it.
        chunk: tokens between two states that are kept for the backward pass.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        y: (B, N, E) in x's dtype; the state after the last token, (B, E, S) float32.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    if reason := supports(x, dt, B):
        raise ValueError(f"selective_scan: {reason}")
    (batch, length, channels), states = x.shape, B.shape[-1]
    shapes = {"dt": x.shape, "A": (channels, states), "B": (batch, length, states), "C": B.shape}
    shapes |= {"D": (channels,), "h": (batch, channels, states)}
    for name, array in zip(shapes, (dt, A, B, C, D, h), strict=True):
        expect_array(name, array, shapes[name])
    call = Call(chunk, False, variant)
    for name in ("outputs", "gradients"):
        tokens = _tuned(call, states, name).variant.tokens
        expect(chunk % tokens == 0, "chunk", chunk, f"a multiple of {tokens} tokens, those of a round")
    given: tuple[jax.Array, ...] = ()
    if keep is not None:
        expect_array("keep", keep, (batch, length))
        given = (keep,)

    def blocks(array: jax.Array) -> jax.Array:
        """Split the channels, the last axis, into blocks."""
        return array.reshape(*array.shape[:-1], channels // BLOCK, BLOCK)

    arrays = blocks(x), blocks(dt), blocks(A.T), B, C, blocks(D), blocks(h.mT)
    results: Any = _scan(call, arrays, given)
    y, last = results
    return y.reshape(x.shape), last.reshape(batch, states, channels).mT


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan(call: Call, arrays: Any, keep: Any) -> Any:
    return _outputs(call, arrays, keep)


def _outputs(call: Call, arrays: Any, keep: Any) -> tuple[jax.Array, ...]:
    saved = ["b k s p c"] * call.saves
    run, plain = _forms(call, arrays, "outputs")
    operands = AXES[: len(arrays) + len(keep)]
    return per_channel(run, plain, operands, ["b n p c", "b s p c", *saved], ["b", "p"])(*arrays, *keep)


def _forward(call: Call, arrays: Any, keep: Any) -> tuple[Any, Any]:
    y, last, states = _outputs(replace(call, saves=True), arrays, keep)
    return (y, last), (arrays, keep, states)


def _backward(call: Call, saved: Any, gradients: Any) -> tuple[Any, Any]:
    arrays, keep, states = saved
    run, plain = _forms(call, arrays, "gradients")
    operands = [*AXES[:6], "b n p c", "b s p c", "b k s p c", *AXES[7:][: len(keep)]]
    results = ["b n p c", "b n p c", "b s p c", "b p n s", "b p n s", "b p c", "b s p c"]
    split = per_channel(run, plain, operands, results, ["b", "p"])
    x, dt, A, B, C, D, first = split(*arrays[:6], *gradients, states, *keep)
    found = x, dt, A.sum(axis=0), B.sum(axis=1), C.sum(axis=1), D.sum(axis=0), first
    cast = (new.astype(old.dtype) for new, old in zip(found, arrays, strict=True))
    return tuple(cast), jax.tree.map(jnp.zeros_like, keep)


_scan.defvjp(_forward, _backward)


def _forms(call: Call, arrays: Any, name: str) -> tuple[Any, Any]:
    """Return a kernel and its formula for these arrays."""
    call = _tuned(call, len(arrays[2]), name)
    both = (kernel.outputs, formula) if name == "outputs" else (kernel.gradients, gradient_formula)
    return functools.partial(both[0], call=call), functools.partial(both[1], call=call)


def _tuned(call: Call, states: int, name: str) -> Call:
    """Return the call with block sizes from the tuning table, unless it has some."""
    if call.variant is not None:
        return call
    return replace(call, variant=choose("selective_scan", Variant, **facts_of(states, name)))


def formula(*arrays: Any, call: Call) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.outputs` in plain operations."""
    x, dt, _, B, C, *_ = arrays
    length, size = x.shape[1], call.chunk
    wide = jnp.promote_types(x.dtype, jnp.float32)
    A, D, h = (arrays[i].astype(wide) for i in (2, 5, 6))
    keep = arrays[7] if len(arrays) > 7 else jnp.ones(x.shape[:2])

    def chunks(array: Any, fill: int = 0) -> Any:
        ends = [(0, 0)] * array.ndim
        ends[1] = (0, -length % size)
        padded = jnp.pad(array.astype(wide), ends, constant_values=fill)
        return jnp.moveaxis(padded.reshape(len(array), -1, size, *array.shape[2:]), 0, 2)

    def token(h: Any, inputs: Any) -> tuple[Any, Any]:
        x, dt, B, C, keep = inputs
        decay = jnp.exp(dt[:, None] * A) * keep[:, None, None, None]
        h = decay * h + (dt * x)[:, None] * B[:, :, None, None]
        return h, jnp.einsum("bspc,bs->bpc", h, C) + D * x

    def chunk(h: Any, inputs: Any) -> tuple[Any, Any]:
        last, y = lax.scan(token, h, inputs)
        return last, (h, y)

    last, (states, y) = lax.scan(chunk, h, (*map(chunks, (x, dt, B, C)), chunks(keep, 1)))
    y = jnp.moveaxis(y.reshape(-1, *y.shape[2:])[:length], 0, 1).astype(x.dtype)
    return y, last, *[jnp.moveaxis(states, 0, 1)] * call.saves


def gradient_formula(*arrays: Any, call: Call) -> tuple[jax.Array, ...]:
    """Compute the results of `kernel.gradients` in plain operations."""
    x, dt, A, B, C, D, of_y, of_last, saved, *keep = arrays

    def of_block(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, h: Any, *rest: Any) -> Any:
        """Return the gradients of one row and block of channels."""
        keep = [array[None] for array in rest[2:]]

        def run(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, h: Any) -> Any:
            one = x[None, :, None], dt[None, :, None], A[:, None], B[None], C[None], D[None], h[None, :, None]
            y, last = formula(*one, *keep, call=replace(call, saves=False))
            return y[0, :, 0], last[0, :, 0]

        return jax.vjp(run, x, dt, A, B, C, D, h)[1](rest[:2])

    A, B, C, D = (array.astype(jnp.float32) for array in (A, B, C, D))
    blocks = jax.vmap(of_block, (1, 1, 1, None, None, 0, 1, 1, 1, *[None] * len(keep)))
    rows = jax.vmap(blocks, (0, 0, None, 0, 0, None, 0, 0, 0, *[0] * len(keep)))
    found = rows(x, dt, A, B, C, D, saved[:, 0], of_y, of_last, *keep)
    inner = (2, 2, 2, 1, 1, 1, 2)  # where the axis of the blocks belongs
    return tuple(jnp.moveaxis(array, 1, axis) for array, axis in zip(found, inner, strict=True))
