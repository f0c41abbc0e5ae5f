"""Decoding step of sliding-window attention (Based, arXiv 2402.18668, Algorithm 3), fused and in place."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.checks import INTEGERS, expect, expect_array, expect_power_of_two, unsupported
from pallas_kernels.partition import per_row_and_head, with_gradient_of
from pallas_kernels.triton_launch import expect_backend
from pallas_kernels.tuning import choose
from pallas_kernels.tuning import fastest as fastest_measured
from pallas_kernels.window_step import kernel
from pallas_kernels.window_step.kernel import Rotary, Variant

__all__ = ["Rotary", "Variant", "fastest", "supports", "window_step"]

MAX_SIZE = 256
"""largest width of a key or value"""


def supports(q: Any, k: Any, v: Any) -> str | None:
    """Return why `window_step` cannot take q (B, H, K), k (B, G, K) and v (B, G, V) here, or None."""
    return unsupported({"q": q, "k": k, "v": v}, 3, {"q": MAX_SIZE, "v": MAX_SIZE})


def facts_of(q: Any, k: Any, v: Any, k_ring: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    return {
        "width": max(q.shape[-1], v.shape[-1]),
        "window": k_ring.shape[1],
        "shared": q.shape[1] // k.shape[1],
        "cache": jnp.dtype(k_ring.dtype).name,
    }


def fastest(q: Any, k: Any, v: Any, k_ring: Any, has_rotary: bool) -> str:
    """Return "xla" where plain operations were measured to be as fast as the kernel, else "pallas"."""
    facts: dict[str, Any] = facts_of(q, k, v, k_ring) | {"rotary": int(has_rotary)}
    return fastest_measured("window_step", rows_and_heads=q.shape[0] * q.shape[1], **facts)


def window_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    k_ring: jax.Array,
    v_ring: jax.Array,
    length: jax.Array,
    *,
    start: jax.Array | None = None,
    position: jax.Array | None = None,
    scale: float | None = None,
    rotary: Rotary | None = None,
    variant: Variant | None = None,
    backend: str = "pallas",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Write one token's key and value into the ring buffers, then attend to the last W tokens, it included.

    The token with index p is in slot p mod W, and the new one has index `length`. A query sees the slots
    whose tokens have indices `start` ... `length`. Arithmetic is float32. Under `jit`, one row of each
    donated ring is overwritten. Works under `vmap`, with rows and heads sharded, and in reverse mode (with
    the gradient of `formula`).

    Args:
        q: (B, H, K) queries, H a multiple of G, K <= 256; float32, bfloat16 or float16.
        k, v: (B, G, K) and (B, G, V), V <= 256.
        k_ring, v_ring: (B, W, G, K) and (B, W, G, V), any W. Slots without a token may hold anything.
        length: (B,) integers, number of tokens of each row before this one.
        start: (B,) integers, index of the first token of each row's segment; default 0.
        position: (B,) integers for the rotary embedding; default ``length - start``.
        scale: factor of the scores; default K^(-1/2).
        rotary: rotate q and k first, with float32 angles; the ring then holds rotated keys.
        variant: block sizes; None takes them from the tuning table.
        backend: "pallas", or "triton" for the same kernel launched through jax-triton.

    Returns:
        y: (B, H, V) in v's dtype, and the new rings.

    Raises:
        ValueError: an argument of a shape, dtype or value that the kernel does not take.
        ImportError: the backend's package or part of jax is missing.
    """
    expect_backend(backend)
    reason = supports(q, k, v)
    if reason:
        raise ValueError(f"window_step: {reason}")
    batch, heads, width = q.shape
    kv_heads, value_size = v.shape[1:]
    expect(heads % kv_heads == 0, "number of query heads", heads, f"a multiple of {kv_heads} key heads")
    expect_array("k", k, (batch, kv_heads, width))
    expect_array("v", v, (batch, kv_heads, value_size))
    shape = tuple(getattr(k_ring, "shape", ()))
    expect(len(shape) == 4 and 0 not in shape, "shape of k_ring", shape, "four axes, none empty")
    slots = k_ring.shape[1]
    expect_array("k_ring", k_ring, (batch, slots, kv_heads, width))
    expect_array("v_ring", v_ring, (batch, slots, kv_heads, value_size))
    if rotary is not None:
        fits = 0 < rotary.dim <= width - rotary.dim % 2
        expect(fits, "rotary.dim", rotary.dim, f"1 to the head width {width} (an odd dim rotates dim + 1)")
    expect_array("length", length, (batch,), INTEGERS)
    for name, array in (("start", start), ("position", position)):
        if array is not None:
            expect_array(name, array, (batch,), INTEGERS)
    start = jnp.zeros((batch,), jnp.int32) if start is None else start
    # Index at which positions are 0: the default position needs no extra operation.
    origin = start if position is None else length - position
    variant = variant or choose("window_step", Variant, **facts_of(q, k, v, k_ring))
    expect_power_of_two("slots", variant.slots)
    expect(variant.queries > 0, "queries", variant.queries, "at least 1")

    grouped = q.reshape(batch, kv_heads, heads // kv_heads, width)  # so that key heads can be sharded
    integers = (x.astype(jnp.int32) for x in (length, start, origin))
    factor = width**-0.5 if scale is None else float(scale)
    run = per_row_and_head(
        functools.partial(kernel.step, scale=factor, variant=variant, backend=backend),
        operands=("b h r k", "b h k", "b h v", "b w h k", "b w h v", "b", "b", "b"),
        results=("b h r v", "b w h k", "b w h v"),
        constants=kernel.rotation_tables(pl.next_power_of_2(width), rotary),
    )
    step = with_gradient_of(functools.partial(formula, scale=factor, rotary=rotary), run)
    y, k_ring, v_ring = step(grouped, k, v, k_ring, v_ring, *integers)
    return y.reshape(batch, heads, value_size), k_ring, v_ring


def formula(q, k, v, k_ring, v_ring, length, start, origin, *, scale: float, rotary: Rotary | None):
    """Compute the kernel's result in plain operations; q is (B, G, R, K).

    origin: (B,) index at which positions are 0.
    """
    f32, slots = jnp.float32, k_ring.shape[1]
    partner, frequency = kernel.rotation_tables(q.shape[-1], rotary)
    angle = (length - origin)[:, None, None].astype(f32) * frequency

    def rotated(x, angle):
        x = x.astype(f32)
        return x * jnp.cos(angle) + x[..., partner] * jnp.sin(angle)

    rows = jnp.arange(q.shape[0])
    slot = length % slots
    k_ring = k_ring.at[rows, slot].set(rotated(k, angle).astype(k_ring.dtype))
    v_ring = v_ring.at[rows, slot].set(v.astype(v_ring.dtype))
    age = (slot[:, None] - jnp.arange(slots)) % slots
    visible = (length[:, None] - age >= jnp.maximum(start, 0)[:, None])[..., None, None]
    # Invisible slots may be NaN, and 0 * NaN is NaN.
    keys, values = (jnp.where(visible, ring.astype(f32), 0) for ring in (k_ring, v_ring))
    scores = jnp.einsum("bgrk,bwgk->bwgr", rotated(q, angle[:, None]), keys) * scale
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=1)
    return jnp.einsum("bwgr,bwgv->bgrv", weights, values).astype(v.dtype), k_ring, v_ring
