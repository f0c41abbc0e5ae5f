"""The residual sum with its norm, and their gradients; every array crosses memory once.

    x = stream + branch + bias,  y = x r scale,  r = (mean(x^2) + eps)^(-1/2)

    dx = dx' + r g - x r^3 mean(g x),  g = dy scale;   dscale = sum over tokens of dy x r,  dbias of dx

A program walks over a chunk of the tokens of one row, some at a time with all their channels; backward it
keeps its share of dscale and dbias in registers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import blocks, both, launch, load, quotient, remainder, store

f32 = jnp.float32


@dataclass(frozen=True)
class Variant:
    """Block sizes, powers of two."""

    tokens: int = 1
    """tokens in registers at a time"""
    rounds: int = 16
    """times `tokens` in a program's chunk"""
    warps: int = 4
    stages: int = 1


def outputs(
    stream: jax.Array, branch: jax.Array, scale: jax.Array, *addends: jax.Array, eps: float, variant: Variant
) -> tuple[jax.Array, ...]:
    """Return x and y (B, N, D), in the dtypes of stream and branch, and mean(x^2) (B, N) in float32.

    Args:
        stream, branch: (B, N, D); scale: (D,).
        addends: any of a bias (D,), and a float32 array (B, N) that is added to every channel: 0, or NaN.
    """

    def body(tokens: "_Tokens", refs: Sequence[Any], results: Sequence[Any]) -> None:
        scale = tokens.load_channels(refs[2])
        of_channels = [tokens.load_channels(refs[3 + n]) for n, x in enumerate(addends) if x.ndim == 1]
        of_tokens = [refs[3 + n] for n, x in enumerate(addends) if x.ndim == 2]

        def step(turn: Any, carry: Any) -> Any:
            tokens.move(turn)
            x = tokens.load(refs[0]) + tokens.load(refs[1])
            x = sum((*of_channels, *map(tokens.load_numbers, of_tokens)), x)
            mean = tokens.mean(x * x)
            y = x * lax.rsqrt(mean + eps) * scale
            tokens.store(results[0], x)
            tokens.store(results[1], jnp.where(mean < jnp.inf, y, 0.0))
            tokens.store_numbers(results[2], mean)
            return carry

        lax.fori_loop(0, min(variant.rounds, pl.cdiv(stream.shape[1], variant.tokens)), step, 0)

    like = jax.ShapeDtypeStruct
    results = like(stream.shape, stream.dtype), like(stream.shape, branch.dtype), like(stream.shape[:2], f32)
    return tuple(_run(variant, body, "outputs", (stream, branch, scale, *addends), results))


def gradient(
    x: jax.Array,
    scale: jax.Array,
    dy: jax.Array,
    dx: jax.Array,
    *,
    has_bias: bool,
    eps: float,
    variant: Variant,
) -> tuple[jax.Array, ...]:
    """Return dx (B, N, D) in x's dtype and in dy's; dscale, and dbias, of each row, (B, D) in float32.

    Args:
        x, dy, dx: (B, N, D). Where mean(x^2) is NaN or infinite, the first result is dx, the second 0.
        scale: (D,).
    """

    def body(tokens: "_Tokens", refs: Sequence[Any], results: Sequence[Any]) -> None:
        scale = tokens.load_channels(refs[1])

        def step(turn: Any, sums: list[jax.Array]) -> list[jax.Array]:
            tokens.move(turn)
            x, dy, dx = (tokens.load(refs[n]) for n in (0, 2, 3))
            mean, product = tokens.mean(x * x), tokens.mean(dy * scale * x)
            is_number = mean < jnp.inf
            factor = lax.rsqrt(mean + eps)
            more = factor * (dy * scale - x * (factor * factor * product))
            dx += jnp.where(is_number, more, 0.0)
            tokens.store(results[0], dx)
            of_branch = jnp.where(is_number, dx, 0.0)
            tokens.store(results[1], of_branch)
            more = jnp.where(is_number, dy * x * factor, 0.0), of_branch
            return [total + new for total, new in zip(sums, more, strict=False)]

        zeros = jnp.zeros((variant.tokens, tokens.padded), f32)
        sums = lax.fori_loop(0, variant.rounds, step, [zeros] * len(results[2:]))
        for ref, total in zip(results[2:], sums, strict=True):
            tokens.store_channels(ref, jnp.sum(total, axis=0))

    batch, length, width = x.shape
    chunks = pl.cdiv(length, variant.tokens * variant.rounds)
    like = jax.ShapeDtypeStruct
    sums = [like((batch, chunks, width), f32)] * (1 + has_bias)
    results = like(x.shape, x.dtype), like(x.shape, dy.dtype), *sums
    found = _run(variant, body, "gradient", (x, scale, dy, dx), results)
    return *found[:2], *(jnp.sum(each, axis=1) for each in found[2:])


def _run(
    variant: Variant,
    body: Callable[..., None],
    name: str,
    arrays: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
) -> Any:
    """Launch a program for each row and chunk of tokens."""
    batch, length, width = arrays[0].shape
    size = variant.tokens * variant.rounds
    chunks, padded = pl.cdiv(length, size), pl.next_power_of_2(width)

    def at(x: Any) -> dict[str, Any]:
        return {"b": quotient(x, chunks), "c": remainder(x, chunks)}

    def spec(array: Any) -> pl.BlockSpec:
        axes = {(width,): "d", (batch, length): "bn", (batch, length, width): "bnd"}[array.shape]
        # A block may extend beyond its array; masks keep every access inside.
        return blocks(axes, {"n": chunks * size, "d": padded}, at)

    # Gradients of scale and bias follow those of both inputs: a sum for each chunk.
    chosen = [spec(x) for x in (results[:2] if name == "gradient" else results)]
    chosen += [blocks("bcd", {"d": padded}, at)] * (len(results) - len(chosen))

    def program(*refs: Any) -> None:
        first = at(pl.program_id(0))["c"] * size
        body(_Tokens(variant, first, length, width), refs[: len(arrays)], refs[len(arrays) :])

    return launch(
        program,
        *arrays,
        grid=(batch * chunks,),
        in_specs=list(map(spec, arrays)),
        out_specs=chosen,
        out_shape=list(results),
        warps=variant.warps,
        stages=variant.stages,
        name=f"rms_norm_{name}",
    )


class _Tokens:
    """The tokens that a program has in registers."""

    def __init__(self, variant: Variant, first: Any, length: int, width: int):
        self._variant, self._first, self._length, self._width = variant, first, length, width
        self.padded = pl.next_power_of_2(width)
        self._channels = None if self.padded == width else jnp.arange(self.padded) < width
        self.move(0)

    def move(self, turn: Any) -> None:
        """Move to a round of the chunk."""
        start = self._first + turn * self._variant.tokens
        self._slice = pl.ds(start, self._variant.tokens)
        self._exist = None
        if self._length % (self._variant.tokens * self._variant.rounds):
            self._exist = start + jnp.arange(self._variant.tokens, dtype=jnp.int32) < self._length

    def mean(self, x: jax.Array) -> jax.Array:
        """Return the mean over the channels, (tokens, 1)."""
        return jnp.sum(x, axis=1, keepdims=True) * (1 / self._width)

    def load(self, ref: Any) -> jax.Array:
        """Return (tokens, channels) in float32."""
        return load(ref, (self._slice, slice(None)), self._valid()).astype(f32)

    def store(self, ref: Any, value: jax.Array) -> None:
        """Store (tokens, channels)."""
        store(ref, (self._slice, slice(None)), value, self._valid())

    def load_numbers(self, ref: Any) -> jax.Array:
        """Return one number per token, (tokens, 1)."""
        return load(ref, (self._slice,), self._exist)[:, None]

    def store_numbers(self, ref: Any, value: jax.Array) -> None:
        """Store one number per token, given as (tokens, 1)."""
        store(ref, (self._slice,), value[:, 0], self._exist)

    def load_channels(self, ref: Any) -> jax.Array:
        """Return one number per channel, (1, channels) in float32."""
        return load(ref, (slice(None),), self._channels).astype(f32)[None]

    def store_channels(self, ref: Any, value: jax.Array) -> None:
        """Store one number per channel."""
        store(ref, (slice(None),), value, self._channels)

    def _valid(self) -> Any:
        rows = None if self._exist is None else self._exist[:, None]
        return both(rows, None if self._channels is None else self._channels[None])
