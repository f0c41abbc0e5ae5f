"""The selective scan and its gradients; a program has 32 channels, with their S states in registers.

    a_t = exp(dt_t A) keep_t,   h_t = a_t h_{t-1} + dt_t x_t B_t,   y_t = sum_s C_t h_t + D x_t

    g_t = C_t dy_t + a_{t+1} g_{t+1}                        (the gradient of h_t)
    dx_t = dt_t sum_s g_t B_t + D dy_t,   ddt_t = x_t sum_s g_t B_t + sum_s g_t h_{t-1} a_t A
    dA = sum_t g_t h_{t-1} a_t dt_t,   dB_t = sum_e g_t dt_t x_t
    dC_t = sum_e h_t dy_t,             dD = sum_t x_t dy_t

A program walks over the tokens of one row and 32 channels. The forward pass stores h at the start of each
chunk. The backward pass takes the chunks from the last to the first: it walks forward through a chunk once,
storing h at the start of every round of a few tokens, then back through the rounds, where the h of each token
is made again and stays in registers. Nothing is divided by a, which may be 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import (
    barrier,
    blocks,
    exp2,
    launch,
    load,
    multiply_add,
    quotient,
    remainder,
    store,
)

f32 = jnp.float32

BLOCK = 32
"""channels of a program: the states of more would need too many registers"""

LN_2 = np.float32(np.log(2))
"""a GPU has 2**x only: the program divides A by this"""


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    tokens: int = 4
    """tokens of a round: their loads are in flight together, backward their states in registers"""
    warps: int = 1
    stages: int = 1


@dataclass(frozen=True)
class Call:
    """What is fixed when a call is traced."""

    chunk: int
    """tokens of a chunk, a multiple of those of a round"""
    saves: bool
    """whether the forward pass returns the states that the backward pass needs"""
    variant: Any
    """a `Variant`; None until the tuning table has given one"""


AXES = ("b n p c", "b n p c", "s p c", "b n s", "b n s", "p c", "b s p c", "b n")
"""of x, dt, A, B, C, D, the first state, and keep if there is one; P blocks of C = 32 channels"""


def outputs(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return y (B, N, P, C), the last state (B, S, P, C), and if `saves` that before each of K chunks.

    Arguments: x and dt (B, N, P, C), A (S, P, C), B and C (B, N, S), D (P, C), the first state, and keep
    (B, N) if some tokens forget the state; P blocks of C = 32 channels.
    """

    def body(scan: "_Scan", first: Any, y: Any, last: Any, *saved: Any) -> None:
        def chunk(number: Any, h: jax.Array) -> jax.Array:
            for states in saved:
                states[number] = h

            def walk(turn: Any, h: jax.Array) -> jax.Array:
                tokens = scan.tokens(number, turn)
                maps = [scan.map(scan.C, token) for token in tokens]
                for token, C in zip(tokens, maps, strict=True):
                    h = token.after(h)
                    scan.store(y, token, multiply_add(scan.D, token.x, jnp.sum(h * C, axis=0)))
                return h

            return lax.fori_loop(0, scan.rounds, walk, h)

        last[...] = lax.fori_loop(0, scan.chunks, chunk, first[...])

    x, _, A, *_, state = arrays[:7]
    results = [(x.shape, x.dtype, "bnpc"), (state.shape, f32, "bspc")]
    if call.saves:
        batch, length = x.shape[:2]
        results.append(((batch, pl.cdiv(length, call.chunk), *A.shape), f32, "bkspc"))
    return _run(call, "outputs", body, arrays[:6], arrays[7:], [(state, "bspc")], results)


def gradients(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return the gradients of x, dt, A, B, C, D and the first state.

    Those of A and D are of each row, (B, S, P, C) and (B, P, C), those of B and C of each block of
    channels, (B, P, N, S). Arguments: those of `outputs`, but with the gradients of y and of the last state
    and the saved states (B, K, S, P, C) in place of the first state.
    """

    def body(scan: "_Scan", of_y: Any, of_last: Any, saved: Any, *results: Any) -> None:
        of_x, of_dt, of_A, of_B, of_C, of_D, of_first, rounds = results
        count = scan.rounds

        def chunk(turn: Any, carry: Any) -> Any:
            number = scan.chunks - 1 - turn

            def ahead(turn: Any, h: jax.Array) -> jax.Array:
                rounds[turn] = h
                for token in scan.tokens(number, turn):
                    h = token.after(h)
                return h

            lax.fori_loop(0, count, ahead, saved[number])
            barrier()  # other threads may read what this one wrote
            carry = lax.fori_loop(0, count, lambda turn, carry: back(number, count - 1 - turn, carry), carry)
            barrier()
            return carry

        def back(number: Any, turn: Any, carry: Any) -> Any:
            g, sum_A, sum_D = carry
            tokens, states = scan.tokens(number, turn), [rounds[turn]]
            maps = [(scan.map(scan.C, token), scan.load(of_y, token)) for token in tokens]
            for token in tokens:
                states.append(token.after(states[-1]))
            for token, (C, dy) in reversed(list(zip(tokens, maps, strict=True))):
                scan.store(of_C, token, jnp.sum(states.pop() * dy, axis=1))
                g = multiply_add(C, dy, g)
                of_input = jnp.sum(g * token.B, axis=0)
                of_exponent = g * token.decay * states[-1]
                of_rate = jnp.sum(of_exponent * scan.rate, axis=0) * LN_2
                scan.store(of_x, token, token.dt * of_input + scan.D * dy)
                scan.store(of_dt, token, token.x * of_input + of_rate)
                scan.store(of_B, token, jnp.sum(g * token.input, axis=1))
                sum_A = multiply_add(of_exponent, token.dt, sum_A)
                sum_D = multiply_add(token.x, dy, sum_D)
                g *= token.decay
            return g, sum_A, sum_D

        start = of_last[...], jnp.zeros_like(scan.rate), jnp.zeros_like(scan.D)
        of_first[...], of_A[...], of_D[...] = lax.fori_loop(0, scan.chunks, chunk, start)

    x, dt, A, _, _, D, of_y, of_last, saved = arrays[:9]
    (batch, length, parts, width), states = x.shape, len(A)
    maps = (batch, parts, length, states), f32, "bpns"
    rounds = (batch, parts, call.chunk // call.variant.tokens, states, width), f32, "bprsc"
    results = [(x.shape, x.dtype, "bnpc"), (dt.shape, dt.dtype, "bnpc"), (of_last.shape, f32, "bspc")]
    results += [maps, maps, ((batch, *D.shape), f32, "bpc"), (of_last.shape, f32, "bspc"), rounds]
    given = [(of_y, "bnpc"), (of_last, "bspc"), (saved, "bkspc")]
    return _run(call, "gradients", body, arrays[:6], arrays[9:], given, results)[:-1]


def _run(
    call: Call,
    name: str,
    body: Callable[..., None],
    arrays: Sequence[jax.Array],
    keep: Sequence[jax.Array],
    given: Sequence[tuple[jax.Array, str]],
    results: Sequence[tuple[tuple[int, ...], Any, str]],
) -> tuple[jax.Array, ...]:
    """Launch a program for each row and block of channels, which are neighbours."""
    (batch, length, parts, width), states = arrays[0].shape, len(arrays[2])
    chunks = pl.cdiv(length, call.chunk)
    sizes = {"n": length, "c": width, "s": states, "k": chunks, "r": call.chunk // call.variant.tokens}

    def at(program: Any) -> dict[str, Any]:
        return {"b": quotient(program, parts), "p": remainder(program, parts)}

    in_axes = ["bnpc", "bnpc", "spc", "bns", "bns", "pc", *["bn"] * len(keep), *(axes for _, axes in given)]

    def program(*refs: Any) -> None:
        split = len(arrays) + len(keep)
        body(_Scan(call, refs[:split], length), *refs[split:])

    return tuple(
        launch(
            program,
            *arrays,
            *keep,
            *(array for array, _ in given),
            grid=(batch * parts,),
            in_specs=[blocks(axes, sizes, at) for axes in in_axes],
            out_specs=[blocks(axes, sizes, at) for *_, axes in results],
            out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in results],
            warps=call.variant.warps,
            stages=call.variant.stages,
            name=f"selective_scan_{name}",
        )
    )


@dataclass(frozen=True)
class _Token:
    index: Any
    exists: Any
    """None if it surely does"""
    x: jax.Array
    dt: jax.Array
    B: jax.Array
    """(S, 1)"""
    decay: jax.Array
    """a, (S, C)"""

    @property
    def input(self) -> jax.Array:
        """dt x, (C,)."""
        return self.dt * self.x

    def after(self, h: jax.Array) -> jax.Array:
        """Return the state (S, C) after this token."""
        return multiply_add(self.decay, h, self.input * self.B)


class _Scan:
    """A program's tokens and channels."""

    def __init__(self, call: Call, refs: Sequence[Any], length: int):
        self._x, self._dt, A, self._B, self.C, D, *self._keep = refs
        self._chunk, self._tokens, self._length = call.chunk, call.variant.tokens, length
        self.chunks, self.rounds = pl.cdiv(length, self._chunk), self._chunk // self._tokens
        rate, least = A[...].astype(f32) / LN_2, float(jnp.finfo(f32).min)
        # Not -inf: tokens with dt = 0, such as those beyond the end, keep the state, and 0 times inf is NaN.
        # Triton's maximum would make a number of a rate that is NaN.
        self.rate = jnp.where(rate < least, least, rate)
        self.D = D[...].astype(f32)

    def tokens(self, chunk: Any, turn: Any) -> list[_Token]:
        """Return the tokens of a round. Those beyond the end change no state: their dt is 0."""
        first = chunk * self._chunk + turn * self._tokens
        return [self._token(first + i) for i in range(self._tokens)]

    def _token(self, index: Any) -> _Token:
        exists = None if self._length % self._chunk == 0 else index < self._length
        x, dt, B = (
            load(ref, (index, slice(None)), exists).astype(f32) for ref in (self._x, self._dt, self._B)
        )
        decay = exp2(dt * self.rate)
        for keep in self._keep:
            decay *= load(keep, (index,), exists, 1)
        return _Token(index, exists, x, dt, B[:, None], decay)

    def load(self, ref: Any, token: _Token) -> jax.Array:
        """Return a token's numbers in float32; zeros if it does not exist."""
        return load(ref, (token.index, slice(None)), token.exists).astype(f32)

    def map(self, ref: Any, token: _Token) -> jax.Array:
        """Return a token's C, (S, 1)."""
        return self.load(ref, token)[:, None]

    def store(self, ref: Any, token: _Token, value: jax.Array) -> None:
        """Store a token's numbers if it exists."""
        store(ref, (token.index, slice(None)), value, token.exists)
