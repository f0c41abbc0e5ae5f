"""Grid, blocks, loads and stores of the kernels of linear recurrences.

Axes of arrays are letters: b row, n token, g head of queries and keys, r head of values among those that
share it, k key channel, v value channel, t tile of value channels, j span of tokens, and of states p padded
key channel and w padded value channel.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.launch import blocks, dot, inside, launch, load, quotient, remainder, store
from pallas_kernels.linear_recurrence.precision import precise

f32 = jnp.float32

KEYS, VALUES, NUMBERS, GATES, STATE, KEPT = "bngk", "bngrv", "bgrn", "bngrk", "bgrkv", "bgrjpw"
KEY_PARTS, NUMBER_PARTS = "bngrtk", "bgrtn"
"""of gradients that are sums over value channels, and over the heads that share queries and keys"""
TOKENS = {
    False: (KEYS, KEYS, VALUES, NUMBERS, NUMBERS),
    True: (KEYS, KEYS, VALUES, GATES, KEYS, KEYS),
}
"""Whether gates are per channel -> axes of q, k, v, log_decay, and what erases: beta, or a and b"""

State = tuple[jax.Array, ...]
"""parts (P, V)"""

BEFORE = np.iinfo(np.int32).min // 2
"""a start before every token"""


@dataclass(frozen=True)
class Variant:
    """Block sizes."""

    chunk: int = 16
    """tokens of a chunk, at most those of a span, which `gradients` takes at once"""
    keys: int = 32
    """key channels of a part of the state: products take their operands from registers"""
    values: int = 64
    """value channels of a program"""
    warps: int = 4
    stages: int = 1


@dataclass(frozen=True)
class Call:
    """What is fixed when a call is traced."""

    scale: float
    """factor of q"""
    precision: str | None
    """"highest": float32's digits in all products; None: in those of the delta rule that make the state"""
    erases: bool
    """whether tokens first erase something that the state holds: the delta rule"""
    variant: Any
    """a `Variant`; None until the tuning table has given one"""
    saves: bool = False
    """whether the forward pass returns the states that the backward pass needs"""
    per_channel: bool = False
    """whether gates are per channel"""
    inclusive: bool = True
    """whether q reads what its token writes; it does if gates are per head"""

    @property
    def span(self) -> int:
        """Tokens between two states that are kept for the backward pass; `gradients` takes them at once."""
        return (32 if self.erases else 64) // (2 if self.per_channel else 1)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Axes of the arrays of tokens."""
        return TOKENS[self.per_channel][: None if self.erases else 4]

    @property
    def name(self) -> str:
        """Part of the name of a kernel."""
        kind = "delta_rule" if self.erases else "linear_recurrence"
        return f"channel_{kind}" if self.per_channel else kind


def padded(size: int) -> int:
    """Return the number of channels padded for a product."""
    return max(16, pl.next_power_of_2(size))


def run(
    call: Call,
    name: str,
    body: Callable[..., None],
    arrays: Sequence[jax.Array],
    given: Sequence[str],
    results: Sequence[tuple[str, Any]],
    by_span: bool = False,
) -> tuple[jax.Array, ...]:
    """Launch a program for each row, head and tile of value channels, and for each span if `by_span`.

    Args:
        body: takes the `Program`, the refs of the arrays with the axes `given`, and those of the results.
        arrays: those of `call.tokens`, those of `given`, and the starts of segments, (B, N), or nothing.
        results: axes and dtypes.
    """
    (batch, length, groups, width), (shared, values) = arrays[0].shape, arrays[2].shape[3:]
    spans, tile = pl.cdiv(length, call.span), min(call.variant.values, padded(values))
    tiles = pl.cdiv(values, tile)
    block = {"n": spans * call.span, "k": padded(width), "v": tile, "p": padded(width), "w": tile}
    block |= {} if by_span else {"j": spans}
    whole = {"b": batch, "n": length, "g": groups, "r": shared, "k": width, "v": values, "t": tiles}
    whole |= {"j": spans, "p": padded(width), "w": tiles * tile}

    def at(program: Any, span: Any) -> dict[str, Any]:
        head, number = quotient(program, tiles), remainder(program, tiles)
        group = quotient(head, shared)
        index = {"b": quotient(group, groups), "g": remainder(group, groups), "r": remainder(head, shared)}
        return index | {"j": span} | dict.fromkeys("tvw", number)

    count = len(call.tokens)

    def program(*refs: Any) -> None:
        inputs, outputs = refs[: len(arrays)], refs[len(arrays) :]
        number, size = remainder(pl.program_id(0), tiles), call.span if by_span else call.variant.chunk
        own = inputs[:count], inputs[count + len(given) :]
        running = Program(call, *own, (length, width, values), size, tile, number, pl.program_id(1))
        body(running, *inputs[count : count + len(given)], *outputs)

    in_axes = [*call.tokens, *given, "bn"][: len(arrays)]
    return tuple(
        launch(
            program,
            *arrays,
            grid=(batch * groups * shared * tiles, spans if by_span else 1),
            in_specs=[blocks(axes, block, at) for axes in in_axes],
            out_specs=[blocks(axes, block, at) for axes, _ in results],
            out_shape=[jax.ShapeDtypeStruct([whole[x] for x in axes], dtype) for axes, dtype in results],
            warps=call.variant.warps,
            stages=call.variant.stages,
            name=f"{call.name}_{name}",
        )
    )


def run_forwards(
    step: Callable[..., State], arrays: Sequence[jax.Array], call: Call
) -> tuple[jax.Array, ...]:
    """Run `outputs`: step(program, y, tokens, state) stores a chunk of y and returns the state after it."""

    def body(program: Program, first: Any, y: Any, last: Any, *saved: Any) -> None:
        program.walk(functools.partial(step, program, y), first, last, saved)

    results = [(VALUES, arrays[2].dtype), (STATE, f32), *[(KEPT, f32)] * call.saves]
    return run(call, "outputs", body, arrays, [STATE], results)


def run_backwards(
    step: Callable[..., State], arrays: Sequence[jax.Array], call: Call
) -> tuple[jax.Array, ...]:
    """Run `state_gradients`: step(program, of_y, tokens, of_state) returns the gradient before a chunk."""

    def body(program: Program, of_y: Any, of_last: Any, of_first: Any, saved: Any) -> None:
        program.walk(functools.partial(step, program, of_y), of_last, of_first, [saved], backwards=True)

    return run(call, "state_gradients", body, arrays, [VALUES, STATE], [(STATE, f32), (KEPT, f32)])


class Tokens(NamedTuple):
    """A chunk of C tokens."""

    first: Any
    rows: Any
    """slice of the refs"""
    exist: Any
    """(C,) whether there is such a token; None: all exist"""


class Program:
    """A running program: its loads, in float32, and its stores."""

    def __init__(
        self,
        call: Call,
        tokens: Sequence[Any],
        starts: Sequence[Any],
        sizes: tuple[int, int, int],
        chunk: int,
        tile: int,
        number: Any,
        span: Any,
    ):
        self.call, self.chunk, self.tile, self._number, self.span = call, chunk, tile, number, span
        self._q, self._k, self.v, self.log_decay, *self.erasing = tokens
        self._starts = starts
        self._length, self._width, self._values = sizes
        self._keys = min(call.variant.keys, padded(self._width))
        self.parts = padded(self._width) // self._keys

    def walk(self, step: Any, first: Any, last: Any, saved: Sequence[Any], backwards: bool = False) -> None:
        """Repeat step(tokens, state) for each chunk; store the state before each span, and the last one."""
        spans, turns = pl.cdiv(self._length, self.call.span), self.call.span // self.chunk

        def chunk(span: Any, turn: Any, state: Any) -> Any:
            return step(self.tokens(span, turns - 1 - turn if backwards else turn), state)

        def of_span(span: Any, state: Any) -> Any:
            span = spans - 1 - span if backwards else span
            for ref in saved:
                for i, part in enumerate(state):
                    ref[span, self._slice(i), :] = part
            return lax.fori_loop(0, turns, functools.partial(chunk, span), state)

        state = tuple(load(first, (rows, slice(None)), valid) for rows, valid in self._rows())
        state = lax.fori_loop(0, spans, of_span, state)
        for part, (rows, valid) in zip(state, self._rows(), strict=True):
            store(last, (rows, slice(None)), part, valid)

    def dot(self, a: jax.Array, b: jax.Array, contract: tuple[int, int] = (1, 0), into: Any = None) -> Any:
        """Return a product at the precision of the call."""
        return dot(a, b, contract, into, self.call.precision)

    def carry(self, a: jax.Array, b: jax.Array, contract: tuple[int, int] = (1, 0), into: Any = None) -> Any:
        """Return a product that the state goes through, with float32's digits if the recurrence erases.

        An error in a write counts once; one in an erasure reaches all later states, which need not shrink.
        """
        return (precise if self.call.erases else self.dot)(a, b, contract, into)

    def pairs(self) -> jax.Array:
        """Return (C, C) zeros."""
        return jnp.zeros((self.chunk, self.chunk), f32)

    def sums(self) -> jax.Array:
        """Return (C, V) zeros."""
        return jnp.zeros((self.chunk, self.tile), f32)

    def tokens(self, span: Any, turn: Any) -> Tokens:
        """Return a chunk of a span. Tokens beyond the end are read as zeros, which keep the state."""
        first = span * self.call.span + turn * self.chunk
        exist = None
        if self._length % self.call.span:
            exist = first + jnp.arange(self.chunk, dtype=jnp.int32) < self._length
        return Tokens(first, pl.ds(first, self.chunk), exist)

    def queries_and_keys(self, tokens: Tokens, part: Any) -> tuple[jax.Array, jax.Array]:
        """Return (C, P) of a part of the channels, queries scaled."""
        q, k = (self.keys(ref, tokens, part) for ref in (self._q, self._k))
        return self.call.scale * q, k

    def keys(self, ref: Any, tokens: Tokens, part: Any) -> jax.Array:
        """Return (C, P) of a part of the channels."""
        return load(ref, *self._at(tokens, part)).astype(f32)

    def values(self, ref: Any, tokens: Tokens) -> jax.Array:
        """Return (C, V)."""
        return load(ref, (tokens.rows, slice(None)), self._channels(tokens.exist)).astype(f32)

    def numbers(self, tokens: Tokens) -> tuple[Any, Any, Any]:
        """Return log_decay, beta or None, and `starts`; (C,) each. Gates are per head."""
        log_decay, *beta = (load(x, (tokens.rows,), tokens.exist) for x in (self.log_decay, *self.erasing))
        return log_decay, beta[0] if beta else None, self.starts(tokens)

    def starts(self, tokens: Tokens) -> Any:
        """Return the starts, (C,), from the chunk's first token, or None."""
        starts = [load(ref, (tokens.rows,), tokens.exist, BEFORE) - tokens.first for ref in self._starts]
        return starts[0] if starts else None

    def put_keys(self, ref: Any, tokens: Tokens, part: Any, value: jax.Array) -> None:
        """Store (C, P)."""
        index, valid = self._at(tokens, part)
        store(ref, index, value, valid)

    def put_values(self, ref: Any, tokens: Tokens, value: jax.Array) -> None:
        """Store (C, V)."""
        store(ref, (tokens.rows, slice(None)), value, self._channels(tokens.exist))

    def put_numbers(self, ref: Any, tokens: Tokens, value: jax.Array) -> None:
        """Store (C,)."""
        store(ref, (tokens.rows,), value, tokens.exist)

    def kept(self, ref: Any, part: Any) -> jax.Array:
        """Return a part of the padded state of the program's span."""
        return ref[self._slice(part), :]

    def _rows(self) -> list[tuple[Any, Any]]:
        """Return slice and mask of each part of a state."""
        found = []
        for part in range(self.parts):
            first = part * self._keys
            exist = None
            if first + self._keys > self._width:
                exist = first + jnp.arange(self._keys, dtype=jnp.int32) < self._width
            found.append((self._slice(part), self._channels(exist)))
        return found

    def _at(self, tokens: Tokens, part: Any) -> tuple[Any, Any]:
        """Return index and mask of a part of the tokens' key channels."""
        return (tokens.rows, self._slice(part)), inside(tokens.exist, self._width, self._keys, part)

    def _slice(self, part: Any) -> Any:
        return pl.ds(part * self._keys, self._keys)

    def _channels(self, exist: Any) -> Any:
        return inside(exist, self._values, self.tile, self._number)
