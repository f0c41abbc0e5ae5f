"""Decoding step of a short convolution (Based, arXiv 2402.18668, section 4.2), fused and in place."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.checks import INTEGERS, expect_array, expect_power_of_two, unsupported
from pallas_kernels.launch import barrier, blocks, launch, load, store
from pallas_kernels.partition import per_channel
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import choose

__all__ = ["Variant", "conv_step", "formula", "loaded", "supports"]

MAX_TAPS = 8


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    channels: int = 512
    """channels per program, a power of two"""
    warps: int = 4
    stages: int = 1


def supports(inner: Any, taps: Any) -> str | None:
    """Return why `conv_step` cannot take inner (B, 2, E) and taps (T, E) here, or None if it can."""
    reason = cannot_launch("pallas") or unsupported({"inner": inner}, 3, {})
    reason = reason or unsupported({"taps": taps}, 2, {})
    if reason is None and not 2 <= taps.shape[0] <= MAX_TAPS:
        return f"a convolution has {taps.shape[0]} taps; the kernel takes 2 to {MAX_TAPS}"
    return reason


def facts_of(inner: Any) -> dict[str, Any]:
    """Return the facts that select a row of the tuning table."""
    return {"batch": inner.shape[0], "channels": inner.shape[-1]}


def conv_step(
    inner: jax.Array,
    history: jax.Array,
    age: jax.Array,
    taps: jax.Array,
    bias: jax.Array | None = None,
    *,
    gated: bool = False,
    variant: Variant | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute y = silu(conv(inner[:, 0]) + bias), times inner[:, 1] if `gated`, and shift the history.

    Arithmetic is float32. Under `jit`, a donated history is overwritten. Works with rows and channels
    sharded; under `vmap` and in reverse mode `formula` computes it.

    Args:
        inner: (B, 2, E), inputs of one token per row; float32, bfloat16 or float16.
        history: (B, T - 1, E), inputs before it, oldest first.
        age: (B,) integers, at least the number of them that belong to the row's segment.
        taps: (T, E), oldest first, T from 2 to 8.
        bias: (E,) or None.
        gated: whether the second half multiplies the outputs.
        variant: block sizes; None takes them from the tuning table.

    Returns:
        y: (B, E) in inner's dtype; the new history.

    Raises:
        ValueError: an argument of a shape or dtype that the kernel does not take.
    """
    reason = supports(inner, taps)
    if reason:
        raise ValueError(f"conv_step: {reason}")
    batch, _, channels = inner.shape
    expect_array("inner", inner, (batch, 2, channels))
    expect_array("history", history, (batch, taps.shape[0] - 1, channels))
    expect_array("age", age, (batch,), INTEGERS)
    expect_array("taps", taps, (taps.shape[0], channels))
    given = [] if bias is None else [bias]
    for array in given:
        expect_array("bias", array, (channels,))
    variant = variant or choose("conv_step", Variant, **facts_of(inner))
    expect_power_of_two("channels", variant.channels)
    run = functools.partial(_step, gated=gated, variant=variant)
    plain = functools.partial(formula, gated=gated)
    operands = ["b two e", "b h e", "b", "t e", *["e"] * len(given)]
    step = per_channel(run, plain, operands, ["b e", "b h e"], ["b", "e"])
    y, history = step(inner, history, age.astype(jnp.int32), taps, *given)
    return y, history


def formula(inner, history, age, taps, *bias, gated: bool):
    """Compute the kernel's result in plain operations."""
    f32, count = jnp.float32, taps.shape[0]
    back = jnp.arange(count - 1, 0, -1)  # age of the history's inputs
    earlier = jnp.where((age[:, None] >= back)[..., None], history.astype(f32), 0)
    window = jnp.concatenate([earlier, inner[:, :1].astype(f32)], axis=1)
    total = jnp.einsum("bte,te->be", window, taps.astype(f32)) + sum(x.astype(f32) for x in bias)
    out = jax.nn.silu(total)
    if gated:
        out = out * inner[:, 1].astype(f32)
    shifted = jnp.concatenate([history[:, 1:], inner[:, :1].astype(history.dtype)], axis=1)
    return out.astype(inner.dtype), shifted


def _step(*arrays: jax.Array, gated: bool, variant: Variant) -> tuple[jax.Array, jax.Array]:
    """Run the kernel on inner, history, age, taps and maybe bias."""
    inner, history, _, taps, *bias = arrays
    batch, halves, width = inner.shape
    count = pl.cdiv(width, variant.channels)
    sizes = {"u": halves, "h": history.shape[1], "t": taps.shape[0], "e": variant.channels}
    spec = functools.partial(blocks, sizes=sizes, at=lambda i: {"b": i // count, "e": i % count})
    y = jax.ShapeDtypeStruct((batch, width), inner.dtype)
    return launch(
        functools.partial(_body, width=width, blocks=count, gated=gated),
        *arrays,
        grid=(batch * count,),
        in_specs=[*map(spec, ("bue", "bhe", "b", "te", *["e"] * len(bias)))],
        out_specs=[spec("be"), spec("bhe")],
        out_shape=[y, jax.ShapeDtypeStruct(history.shape, history.dtype)],
        aliases={1: 1},
        warps=variant.warps,
        stages=variant.stages,
        name="conv_step",
    )


def _body(inner, history, age, taps, *refs, width, blocks, gated) -> None:
    """Compute one block."""
    *bias, y, new_history = refs
    every, channels = slice(None), y.shape[0]
    inside = None
    if width % channels:
        inside = pl.program_id(0) % blocks * channels + jnp.arange(channels) < width
    step = loaded(history, age, taps, *bias, inside=inside)
    x, *factors = (load(inner, (n, every), inside) for n in range(1 + gated))
    out = step(x, new_history)
    for factor in factors:
        out *= factor.astype(jnp.float32)
    store(y, every, out, inside)


def loaded(history: Any, age: Any, taps: Any, *bias: Any, inside: Any) -> Callable[..., jax.Array]:
    """Load refs of some channels, and return a function that takes their step.

    It maps x (E,) to silu(conv(x) + bias) in float32, and stores the new history into a ref. All loads come
    before the stores, since the history is overwritten in place.
    """
    f32, every, old = jnp.float32, slice(None), age[...]
    earlier, (*kernel, last) = (
        [load(ref, (n, every), inside) for n in range(ref.shape[0])] for ref in (history, taps)
    )
    addends = [load(ref, every, inside) for ref in bias]

    def step(x: jax.Array, new_history: Any) -> jax.Array:
        total = last.astype(f32) * x.astype(f32) + sum(each.astype(f32) for each in addends)
        for back in range(1, len(kernel) + 1):
            # Inputs before the segment may be NaN.
            total += kernel[-back].astype(f32) * jnp.where(old >= back, earlier[-back].astype(f32), 0)
        barrier()  # warps may share channels: none may store before all have loaded
        for n, kept in enumerate([*earlier[1:], x]):
            store(new_history, (n, every), kept, inside)
        return total * jax.nn.sigmoid(total)

    return step
