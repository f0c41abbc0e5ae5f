"""One token of a short convolution, its activation and gate; a program computes some channels of one row."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.launch import launch, load, store


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
    blocks = pl.cdiv(width, variant.channels)

    def of_row(*before: int) -> pl.BlockSpec:
        index = lambda i: (i // blocks, *[0] * len(before), i % blocks)  # noqa: E731
        return pl.BlockSpec((None, *before, variant.channels), index)

    rows = of_row(history.shape[1])
    y = jax.ShapeDtypeStruct((batch, width), inner.dtype)
    return launch(
        functools.partial(_body, width=width, blocks=blocks, gated=gated),
        *arrays,
        grid=(batch * blocks,),
        in_specs=[
            of_row(halves),
            rows,
            pl.BlockSpec((None,), lambda i: (i // blocks,)),
            pl.BlockSpec((taps.shape[0], variant.channels), lambda i: (0, i % blocks)),
            *[pl.BlockSpec((variant.channels,), lambda i: (i % blocks,)) for _ in bias],
        ],
        out_specs=[of_row(), rows],
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
