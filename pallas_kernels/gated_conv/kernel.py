"""The gate of a short convolution or of an MLP, and its gradients; every array crosses memory once.

    c[t] = sum_j taps[T - 1 - j] x[t - j],  x = u1 + b1;   y = a(c) * (u2 + b2)

    dc = dy (u2 + b2) a'(c);   du2 = dy a(c);   du1[t] = sum_j taps[T - 1 - j] dc[t + j]
    dtaps[T - 1 - j] = sum_t dc[t] x[t - j];   db = sum_t du

A program walks over a chunk of the tokens of one row, with some channels in registers: the last T - 1 values
of x and dc, and its share of the sums. du1 follows T - 1 tokens later.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import blocks, both, launch, load, quotient, remainder, store
from pallas_kernels.row_products.kernel import GATES

f32 = jnp.float32


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    channels: int = 256
    """channels per program, a power of two"""
    tokens: int = 4
    """tokens whose loads are in flight together"""
    rounds: int = 16
    """times `tokens` in a program's chunk"""
    warps: int = 2
    stages: int = 1


@dataclass(frozen=True)
class Call:
    """What is fixed when a call is traced."""

    activation: str
    activated: int
    """the half that is convolved and activated; the other one multiplies"""
    taps: int
    """0 without a convolution"""
    has_bias: bool
    variant: Any
    """a `Variant`; None until the tuning table has given one"""

    @property
    def sums(self) -> int:
        """Number of sums over tokens: the gradients of the taps and of both biases."""
        return self.taps + 2 * self.has_bias


def outputs(inner: jax.Array, *parameters: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return y (B, N, E); arguments as for `pallas_kernels.gated_conv`."""

    def body(chunk: "_Chunk", results: Sequence[Any]) -> None:
        def step(turn: Any, past: list[jax.Array]) -> list[jax.Array]:
            tokens = chunk.tokens(turn)
            inputs = past + [chunk.activated(token) for token in tokens]
            factors = [chunk.half(token, 1 - call.activated) for token in tokens]
            for i, (token, factor) in enumerate(zip(tokens, factors, strict=True)):
                conv = chunk.convolved(inputs[i : i + chunk.span])
                chunk.store(results[0], token, GATES[call.activation](conv) * factor)
            return inputs[len(tokens) :]

        lax.fori_loop(0, call.variant.rounds, step, chunk.past())

    batch, length, _, channels = inner.shape
    y = jax.ShapeDtypeStruct((batch, length, channels), inner.dtype)
    return _run(call, body, "outputs", (inner,), parameters, [y])


def gradients(inner: jax.Array, dy: jax.Array, *parameters: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return the gradient of inner, and if there are parameters theirs of each row, (B, sums, E) float32."""

    def body(chunk: "_Chunk", results: Sequence[Any]) -> None:
        later = chunk.span - 1

        def walk(tokens: Sequence[Any], carry: Any, is_own: bool) -> Any:
            past, of_past, sums = carry
            inputs = past + [chunk.activated(token) for token in tokens]
            factors = [chunk.half(token, 1 - call.activated) for token in tokens]
            dys = [chunk.load(chunk.dy, token) for token in tokens]
            of_conv = list(of_past)
            for i, (token, factor, dy) in enumerate(zip(tokens, factors, dys, strict=True)):
                window = inputs[i : i + chunk.span]
                conv = chunk.convolved(window)
                value, slope = jax.jvp(GATES[call.activation], (conv,), (jnp.ones_like(conv),))
                of_conv.append(dy * factor * slope)
                of_input = chunk.convolved(of_conv[i : i + chunk.span][::-1])
                is_before = (token - later < chunk.first) if later and is_own else None
                chunk.store(results[0], token - later, of_input, call.activated, unless=is_before)
                more: list[Any] = [0] * call.taps
                halves = [of_input if is_before is None else jnp.where(is_before, 0.0, of_input), 0]
                if is_own:
                    chunk.store(results[0], token, dy * value, 1 - call.activated)
                    more, halves[1] = [of_conv[-1] * x for x in window][: call.taps], dy * value
                halves = halves if call.activated == 0 else halves[::-1]
                sums = [old + new for old, new in zip(sums, more + halves * call.has_bias, strict=True)]
            return inputs[len(tokens) :], of_conv[len(tokens) :], sums

        zeros = jnp.zeros((call.variant.channels,), f32)
        start = chunk.past(), [zeros] * later, [zeros] * call.sums
        carry = lax.fori_loop(
            0, call.variant.rounds, lambda turn, carry: walk(chunk.tokens(turn), carry, True), start
        )
        ahead = [chunk.first + chunk.size + i for i in range(later)]
        for number, total in enumerate(walk(ahead, carry, False)[-1]):
            store(results[1], (number, slice(None)), total, chunk.inside)

    batch, length, _, channels = inner.shape
    results = [jax.ShapeDtypeStruct(inner.shape, inner.dtype)]
    if call.sums:
        chunks = pl.cdiv(length, call.variant.tokens * call.variant.rounds)
        results.append(jax.ShapeDtypeStruct((batch, chunks, call.sums, channels), f32))
    found = _run(call, body, "gradients", (inner, dy), parameters, results)
    return found[0], *(jnp.sum(sums, axis=1) for sums in found[1:])


def _run(
    call: Call,
    body: Callable[..., None],
    name: str,
    arrays: Sequence[jax.Array],
    parameters: Sequence[jax.Array],
    results: Sequence[jax.ShapeDtypeStruct],
) -> tuple[jax.Array, ...]:
    """Launch a program for each row, chunk of tokens, and block of channels, which are neighbours."""
    (batch, length, _, width), channels = arrays[0].shape, call.variant.channels
    chunks = pl.cdiv(length, call.variant.tokens * call.variant.rounds)
    parts = pl.cdiv(width, channels)

    def at(x: Any) -> dict[str, Any]:
        rest = quotient(x, parts)
        return {"b": quotient(rest, chunks), "c": remainder(rest, chunks), "e": remainder(x, parts)}

    sizes = {"n": length, "u": 2, "s": call.sums, "t": call.taps, "e": channels}
    spec = functools.partial(blocks, sizes=sizes, at=at)
    in_axes = ["bnue", "bne"][: len(arrays)] + ["te"] * (call.taps > 0) + ["ue"] * call.has_bias
    out_axes = ["bne" if name == "outputs" else "bnue", "bcse"]

    def program(*refs: Any) -> None:
        here = at(pl.program_id(0))
        chunk, block = here["c"], here["e"]
        inside = None if width % channels == 0 else block * channels + jnp.arange(channels) < width
        given = len(arrays) + len(parameters)
        body(_Chunk(call, refs[:given], len(arrays), chunk, length, inside), refs[given:])

    return tuple(
        launch(
            program,
            *arrays,
            *parameters,
            grid=(batch * chunks * parts,),
            in_specs=[*map(spec, in_axes)],
            out_specs=[*map(spec, out_axes[: len(results)])],
            out_shape=list(results),
            warps=call.variant.warps,
            stages=call.variant.stages,
            name=f"gated_conv_{name}",
        )
    )


class _Chunk:
    """A program's tokens and channels."""

    def __init__(self, call: Call, refs: Sequence[Any], arrays: int, chunk: Any, length: int, inside: Any):
        self._call, self._length, self.inside = call, length, inside
        """which channels exist; None if all do"""
        self._inner, self.dy = refs[0], refs[arrays - 1]
        self.size = call.variant.tokens * call.variant.rounds
        self.first = chunk * self.size
        self.span = max(call.taps, 1)
        """tokens that a convolution sees"""
        parameters = [[self._load(ref, (n,)) for n in range(ref.shape[0])] for ref in refs[arrays:]]
        self._taps = parameters[0] if call.taps else None
        self._bias = parameters[-1] if call.has_bias else None

    def tokens(self, turn: Any) -> list[Any]:
        """Return the tokens of a round."""
        return [self.first + turn * self._call.variant.tokens + i for i in range(self._call.variant.tokens)]

    def past(self) -> list[jax.Array]:
        """Return the inputs of the convolution before the chunk, oldest first."""
        return [self.activated(self.first - back) for back in range(self.span - 1, 0, -1)]

    def load(self, ref: Any, token: Any, *half: int) -> jax.Array:
        """Return the channels of a token in float32, zeros if it does not exist."""
        return self._load(ref, (token, *half), self._exists(token))

    def store(self, ref: Any, token: Any, value: Any, *half: int, unless: Any = None) -> None:
        """Store the channels of a token if it exists."""
        exists = self._exists(token) if unless is None else self._exists(token) & ~unless
        store(ref, (token, *half, slice(None)), value, both(self.inside, exists))

    def half(self, token: Any, which: int) -> jax.Array:
        """Return half of the inputs, with its bias."""
        found = self.load(self._inner, token, which)
        return found if self._bias is None else found + self._bias[which]

    def activated(self, token: Any) -> jax.Array:
        """Return the input of the convolution, zeros at a token that does not exist."""
        found = self.half(token, self._call.activated)
        return found if self._bias is None else jnp.where(self._exists(token), found, 0.0)

    def convolved(self, inputs: Sequence[jax.Array]) -> jax.Array:
        """Return the sum of the taps times inputs."""
        if self._taps is None:
            return inputs[0]
        first, *others = (tap * x for tap, x in zip(self._taps, inputs, strict=True))
        return sum(others, first)

    def _load(self, ref: Any, index: tuple[Any, ...], exists: Any = None) -> jax.Array:
        return load(ref, (*index, slice(None)), both(self.inside, exists)).astype(f32)

    def _exists(self, token: Any) -> Any:
        return (token >= 0) & (token < self._length)
