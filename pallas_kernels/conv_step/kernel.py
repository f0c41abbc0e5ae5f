"""One token of a short convolution, its activation and gate; a program computes some channels of one row."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.launch import blocks, launch, load, store


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    channels: int = 512
    """channels per program, a power of two"""
    warps: int = 4
    stages: int = 1


def step(*arrays: jax.Array, gated: bool, variant: Variant) -> tuple[jax.Array, jax.Array]:
    """Run the kernel on inner, history, age, taps and maybe bias of `pallas_kernels.conv_step`."""
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
    """Compute one block; all loads come before the stores, since the history is overwritten in place."""
    *bias, y, new_history = refs
    f32, every, channels = jnp.float32, slice(None), y.shape[0]
    inside = None
    if width % channels:
        inside = pl.program_id(0) % blocks * channels + jnp.arange(channels) < width
    count = taps.shape[0]
    x = load(inner, (0, every), inside)
    earlier = [load(history, (n, every), inside) for n in range(count - 1)]
    total = load(taps, (count - 1, every), inside).astype(f32) * x.astype(f32)
    for ref in bias:
        total += load(ref, every, inside).astype(f32)
    for back in range(1, count):
        # Inputs before the segment may be NaN.
        tap = jnp.where(age[...] >= back, earlier[count - 1 - back].astype(f32), 0)
        total += load(taps, (count - 1 - back, every), inside).astype(f32) * tap
    out = total * jax.nn.sigmoid(total)
    if gated:
        out *= load(inner, (1, every), inside).astype(f32)
    store(y, every, out, inside)
    for n, kept in enumerate([*earlier[1:], x][: count - 1]):
        store(new_history, (n, every), kept, inside)
