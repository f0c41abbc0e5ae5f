"""The residual sum with its norm, and their gradients; every array crosses memory once.

    x = stream + branch + bias,  y = x r scale,  r = (mean(x^2) + eps)^(-1/2)

    dx = dx' + r (dy scale - y / scale mean(dy y));   dscale = sum over tokens of dy y / scale,  dbias of dx

The gradients need y, which the products after it keep anyway, and not x, which nothing else keeps. A program
walks over a chunk of the tokens of one row, some at a time with all their channels; backward it keeps its
share of dscale and dbias in registers.
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


def divisor(scale: jax.Array, dtype: Any) -> jax.Array:
    """Return the scales, with 2^-100, or 2^-14 for y in float16, in place of smaller ones.

    So y, of this dtype, determines x even where a scale is 0.
    """
    least = max(2.0**-100, float(jnp.finfo(dtype).tiny))
    return jnp.where(jnp.abs(scale) < least, jnp.where(scale < 0, -least, least), scale)


def outputs(scale: jax.Array, *addends: jax.Array, eps: float, variant: Variant) -> tuple[jax.Array, ...]:
    """Return x and y (B, N, D), and mean(x^2) (B, N) in float32.

    Args:
        scale: (D,).
        addends: of x: maybe the stream, and the branch (B, N, D); then any of a bias (D,), and a float32
            array (B, N) that is added to every channel: 0, or NaN. x has the stream's dtype, y the branch's.
    """
    *stream, branch = (x for x in addends if x.ndim == 3)

    def body(tokens: "_Tokens", refs: Sequence[Any], results: Sequence[Any]) -> None:
        scale = divisor(tokens.load_channels(refs[0]), branch.dtype)
        bias = {n: tokens.load_channels(refs[1 + n]) for n, x in enumerate(addends) if x.ndim == 1}
        load = {3: tokens.load, 2: tokens.load_numbers}

        def step(turn: Any, carry: Any) -> Any:
            tokens.move(turn)
            terms = [bias[n] if n in bias else load[x.ndim](refs[1 + n]) for n, x in enumerate(addends)]
            x: Any = sum(terms[1:], terms[0])
            mean = tokens.mean(x * x)
            y = x * lax.rsqrt(mean + eps) * scale
            tokens.store(results[0], x)
            tokens.store(results[1], jnp.where(mean < jnp.inf, y, 0.0))
            tokens.store_numbers(results[2], mean)
            return carry

        lax.fori_loop(0, min(variant.rounds, pl.cdiv(branch.shape[1], variant.tokens)), step, 0)

    like, shape = jax.ShapeDtypeStruct, branch.shape
    x = like(shape, stream[0].dtype if stream else f32)
    results = x, like(shape, branch.dtype), like(shape[:2], f32)
    return tuple(_run(variant, body, "outputs", (scale, *addends), results))


def gradient(
    y: jax.Array,
    mean: jax.Array,
    scale: jax.Array,
    dx: jax.Array,
    dy: jax.Array,
    dmean: jax.Array,
    *,
    has_stream: bool,
    has_bias: bool,
    eps: float,
    variant: Variant,
) -> tuple[jax.Array, ...]:
    """Return the gradients of the stream and branch; of scale and bias those of each row, (B, D) in float32.

    Args:
        y, mean: results of `outputs`. Where the mean is NaN or infinite, the stream's gradient is dx, others
            are 0.
        scale: (D,).
        dx, dy, dmean: gradients of the results of `outputs`.
    """

    def body(tokens: "_Tokens", refs: Sequence[Any], results: Sequence[Any]) -> None:
        scale = divisor(tokens.load_channels(refs[2]), y.dtype)
        inverse = 1 / scale

        def step(turn: Any, sums: list[jax.Array]) -> list[jax.Array]:
            tokens.move(turn)
            dx, dy, y = (tokens.load(refs[n]) for n in (3, 4, 0))
            # Tokens that do not exist have the mean 1: with eps = 0 one of 0 would give NaN.
            mean, dmean = tokens.load_numbers(refs[1], other=1), tokens.load_numbers(refs[5])
            is_number, of_scale = mean < jnp.inf, dy * y
            factor = lax.rsqrt(mean + eps)
            along = dmean * (2 / tokens.width) / factor - factor * tokens.mean(of_scale)
            dx += jnp.where(is_number, factor * dy * scale + y * inverse * along, 0.0)
            of_branch = jnp.where(is_number, dx, 0.0)
            for ref, value in zip(results, [dx] * has_stream + [of_branch], strict=False):
                tokens.store(ref, value)
            more = jnp.where(is_number, of_scale, 0.0), of_branch
            return [total + new for total, new in zip(sums, more, strict=False)]

        zeros = jnp.zeros((variant.tokens, tokens.padded), f32)
        sums = lax.fori_loop(0, variant.rounds, step, [zeros] * (1 + has_bias))
        for ref, total, factor in zip(results[1 + has_stream :], sums, (inverse, 1.0), strict=False):
            tokens.store_channels(ref, jnp.sum(total * factor, axis=0))

    batch, length, width = y.shape
    chunks = pl.cdiv(length, variant.tokens * variant.rounds)
    like = jax.ShapeDtypeStruct
    sums = [like((batch, chunks, width), f32)] * (1 + has_bias)
    results = [like(y.shape, dx.dtype)] * has_stream + [like(y.shape, y.dtype), *sums]
    found = _run(variant, body, "gradient", (y, mean, scale, dx, dy, dmean), results, len(sums))
    return *found[: -len(sums)], *(jnp.sum(each, axis=1) for each in found[-len(sums) :])


def _run(
    variant: Variant,
    body: Callable[..., None],
    name: str,
    arrays: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
    sums: int = 0,
) -> Any:
    """Launch a program for each row and chunk of tokens; the last results are `sums` over each chunk."""
    batch, length, width = results[0].shape
    size = variant.tokens * variant.rounds
    chunks, padded = pl.cdiv(length, size), pl.next_power_of_2(width)

    def at(x: Any) -> dict[str, Any]:
        return {"b": quotient(x, chunks), "c": remainder(x, chunks)}

    def spec(array: Any) -> pl.BlockSpec:
        axes = {(width,): "d", (batch, length): "bn", (batch, length, width): "bnd"}[array.shape]
        # A block may extend beyond its array; masks keep every access inside.
        return blocks(axes, {"n": chunks * size, "d": padded}, at)

    chosen = [spec(x) for x in results[: len(results) - sums]] + [blocks("bcd", {"d": padded}, at)] * sums

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
        self._variant, self._first, self._length, self.width = variant, first, length, width
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
        return jnp.sum(x, axis=1, keepdims=True) * (1 / self.width)

    def load(self, ref: Any) -> jax.Array:
        """Return (tokens, channels) in float32."""
        return load(ref, (self._slice, slice(None)), self._valid()).astype(f32)

    def store(self, ref: Any, value: jax.Array) -> None:
        """Store (tokens, channels)."""
        store(ref, (self._slice, slice(None)), value, self._valid())

    def load_numbers(self, ref: Any, other: int = 0) -> jax.Array:
        """Return one number per token, (tokens, 1); `other` for tokens that do not exist."""
        return load(ref, (self._slice,), self._exist, other=other)[:, None]

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
