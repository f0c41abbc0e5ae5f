"""Linear recurrences with a gate per key channel and their gradients, in chunks of C tokens.

A token reads the state S before it with q and, if the recurrence erases, with a; it writes v under k and what
a read, u, under b. With x.y = sum_c D_ijc x_ic y_jc, D_ij the decay from after token j to before token i,

    u_i = S^T (d_i a_i) + sum_{j<i} (a_i.k_j) v_j + (a_i.b_j) u_j
    y_i = S^T (d_i q_i) + sum_{j<i} (q_i.k_j) v_j + (q_i.b_j) u_j
    S'  = d_C S + sum_j (e_j k_j) v_j^T + (e_j b_j) u_j^T

with the decays d_i from the start of the chunk to before token i, e_j from after token j to the end. If q
reads what its token writes, then it is multiplied by its token's gates here, and products of a token's own q
with k and b are on the diagonals. The u of a chunk solve a triangular system,

    U = (1 - AB)^-1 (S^T (d a) + AK V),     with AB the matrix of the a_i.b_j, and so on.

Pairs of tokens are in one of log2 C levels. Halve the chunk, the halves, and so on: token i is in the later
and j in the earlier half of one block. D_ij is the decay to the middle times that from there, whose exponents
are sums of steps. So a level is a product of x, decayed since the middle, and y, decayed until it, and each
token has one factor per level. Nothing is divided or subtracted: a gate may be 0.

Gradients are those of these equations:

    dR = (1 - AB)^-T (QB^T dy + (e b) dS'),     that of S^T (d a) + AK V
    dS = d_C dS' + (d q)^T dy + (d a)^T dR,     dV = QK^T dy + AK^T dR + (e k) dS'

and dy V^T, dy U^T, dR V^T and dR U^T are those of QK, QB, AK and AB.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.launch import barrier
from pallas_kernels.linear_recurrence.precision import inverse, precise, selected_sums
from pallas_kernels.linear_recurrence.program import (
    KEPT,
    KEY_PARTS,
    VALUES,
    Call,
    Program,
    State,
    Tokens,
    f32,
    run,
    run_backwards,
    run_forwards,
)

Pairs = list[list[jax.Array]]
"""(C, C) of each reader, q and a, with each writer, k and b"""

LEAST = -1e4
"""of an exponent of a token: 0 times infinity would not be 0 in the products that add exponents"""


def outputs(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return y (B, N, G, R, V), the last state (B, G, R, K, V), and if `saves` that before each of J spans.

    Arguments: q and k (B, N, G, K), v (B, N, G, R, V), log_decay (B, N, G, R, K), if the recurrence erases a
    and b (B, N, G, K), the first state, and starts (B, N) if there are segments. Channels of saved states are
    padded.
    """

    def step(program: Program, y: Any, tokens: Tokens, state: State) -> State:
        chunk = _Chunk(program, tokens)
        pairs, read = chunk.no_pairs(), chunk.nothing()
        for i, part in enumerate(state):
            channels = _Channels(chunk, i)
            pairs = channels.add_pairs(pairs)
            read = [chunk.dots[n](x, part, into=read[n]) for n, x in enumerate(channels.from_start())]
        values = chunk.written(pairs, read[-1])
        for products, value in zip(pairs[0], values, strict=True):
            read[0] = program.dot(products, value, into=read[0])
        program.put_values(y, tokens, read[0])
        parts = []
        for i, part in enumerate(state):
            channels = _Channels(chunk, i)
            part = channels.across * part
            for x, value in zip(channels.to_end(), values, strict=True):
                part = program.carry(x, value, (0, 0), part)
            parts.append(part)
        return tuple(parts)

    return run_forwards(step, arrays, call)


def state_gradients(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return the gradients of the first state, and of that after each of J spans, (B, G, R, J, K, V) padded.

    Arguments: those of `outputs`, with the gradients of y and of the last state instead of the first state.
    """

    def step(program: Program, of_y: Any, tokens: Tokens, of_state: State) -> State:
        chunk = _Chunk(program, tokens)
        of_read, of_end, pairs = [program.values(of_y, tokens)], program.sums(), chunk.no_pairs()
        for i, part in enumerate(of_state) if call.erases else ():
            channels = _Channels(chunk, i)
            pairs = channels.add_pairs(pairs)
            of_end = precise(channels.to_end()[1], part, into=of_end)
        if call.erases:
            of_read.append(chunk.right_side(pairs, of_read[0], of_end))
            barrier()  # else the compiler keeps all parts of q and k in registers
        parts = []
        for i, part in enumerate(of_state):
            channels = _Channels(chunk, i)
            part = channels.across * part
            for n, x in enumerate(channels.from_start()):
                part = chunk.dots[n](x, of_read[n], (0, 0), part)
            parts.append(part)
        return tuple(parts)

    return run_backwards(step, arrays, call)


def gradients(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return the gradients of q, k, v, log_decay and, if the recurrence erases, a and b.

    All but that of v, (B, N, G, R, T, K), are of each head and each of T tiles of value channels. Arguments:
    those of `outputs`, with the gradient of y, the states before each span and the gradients of those after
    it instead of the first state.
    """

    def body(program: Program, of_y: Any, states: Any, of_states: Any, *results: Any) -> None:
        of_q, of_k, of_v, of_log_decay, *of_erasing = results
        dot, tokens = program.dot, program.tokens(program.span, 0)
        chunk = _Chunk(program, tokens)

        def add(i: Any, sums: Any) -> Any:
            pairs, read, of_end = sums
            channels = _Channels(chunk, i)
            state, of_state = program.kept(states, i), program.kept(of_states, i)
            if call.erases:
                read = precise(channels.from_start()[1], state, into=read)
            of_end = [program.carry(x, of_state, into=of_end[n]) for n, x in enumerate(channels.to_end())]
            return channels.add_pairs(pairs), read, of_end

        sums = chunk.no_pairs(), program.sums(), chunk.nothing()
        pairs, read, of_end = lax.fori_loop(0, program.parts, add, sums)
        values, of_read = chunk.written(pairs, read), [program.values(of_y, tokens)]
        if call.erases:
            of_read.append(chunk.right_side(pairs, of_read[0], of_end[1]))
        of_value = of_end[0]
        for products, of_reading in zip(pairs, of_read, strict=True):
            of_value = dot(products[0], of_reading, (0, 0), of_value)
        program.put_values(of_v, tokens, of_value)
        of_pairs = [[dot(x, value, (1, 1)) for value in values] for x in of_read]
        own = [jnp.sum(jnp.where(chunk.same, x, 0), axis=1, keepdims=True) for x in of_pairs[0]]

        def finish(i: Any, _: Any) -> None:
            channels = _Channels(chunk, i)
            state, of_state = program.kept(states, i), program.kept(of_states, i)
            # Loaded again: in registers they would spill others.
            read = [program.values(of_y, tokens), *of_read[1:]]
            written = [program.values(program.v, tokens), *values[1:]]
            of_readers = [channels.since * dot(x, state, (1, 1)) for x in read]
            of_writers = [channels.until * dot(x, of_state, (1, 1)) for x in written]
            since, until = channels.total(of_readers, []), channels.total([], of_writers)
            of_gates = selected_sums(chunk.before, since, (0, 0)) + selected_sums(chunk.after, until, (0, 0))
            of_gates += jnp.sum(channels.across * state * of_state, axis=1)[None, :]

            def of_level(number: Any, sums: Any) -> Any:
                of_readers, of_writers, of_gates = sums
                level = chunk.level(number)
                readers, writers, factor = channels.decayed(level)
                visible = [[jnp.where(level.visible, x, 0) for x in row] for row in of_pairs]
                new_readers = [factor * _sum(map(dot, row, writers)) for row in visible]
                new_writers = [
                    factor * _sum(dot(g, x, (0, 0)) for g, x in zip(column, readers, strict=True))
                    for column in zip(*visible, strict=True)
                ]
                of_gates += selected_sums(level.steps, channels.total(new_readers, new_writers), (0, 0))
                return _sums(of_readers, new_readers), _sums(of_writers, new_writers), of_gates

            sums = of_readers, of_writers, of_gates
            of_readers, of_writers, of_gates = lax.fori_loop(0, chunk.levels, of_level, sums)
            if call.inclusive:
                of_gates += channels.readers[0] * of_readers[0]
                of_readers[0] *= channels.gate
                for n, each in enumerate(own):
                    of_readers[0] += each * channels.writers[n]
                    of_writers[n] += each * channels.q
            of_readers[0] *= call.scale
            found = of_readers[0], of_writers[0], of_gates, *of_readers[1:], *of_writers[1:]
            for ref, value in zip((of_q, of_k, of_log_decay, *of_erasing), found, strict=True):
                program.put_keys(ref, tokens, i, value)

        lax.fori_loop(0, program.parts, finish, None)

    keys = [(KEY_PARTS, f32)]
    results = [*keys * 2, (VALUES, arrays[2].dtype), *keys * (3 if call.erases else 1)]
    return run(call, "gradients", body, arrays, [VALUES, KEPT, KEPT], results, by_span=True)


class _Level(NamedTuple):
    """Pairs of tokens in the later and the earlier half of a block."""

    steps: jax.Array
    """(C, C), row i: 1 at the tokens whose gates are in the factor of token i"""
    visible: jax.Array
    """(C, C) the pairs that are in one segment"""


class _Chunk:
    """Masks of a chunk, and its equations."""

    def __init__(self, program: Program, tokens: Tokens):
        self.program, self.tokens = program, tokens
        index = jnp.arange(program.chunk, dtype=jnp.int32)
        row, column = index[:, None], index[None, :]
        self._row, self._earlier, self._later = row, column < row, column > row
        self.before, self.after = self._earlier.astype(f32), self._later.astype(f32)
        self.differing, self.same = row ^ column, column == row
        starts = program.starts(tokens)
        self.since = self.until = self.across = self._visible = None
        if starts is not None:
            last = jnp.max(starts)
            self._visible = column >= starts[:, None]
            self.since, self.until, self.across = (starts < 0)[:, None], row >= last, last < 0
        self.levels = program.chunk.bit_length() - 1
        self.dots = program.dot, precise
        """products with what a reader, q or a, reads"""
        self._each = range(2 if program.call.erases else 1)
        """readers, or writers"""

    def level(self, number: Any) -> _Level:
        """Return a level; the first has blocks of two tokens."""
        size = jnp.int32(1) << number
        later = (self._row & size) != 0
        inside = (self.differing < size) & jnp.where(later, self._earlier, self._later)
        pairs = (self.differing >= size) & (self.differing < 2 * size) & self._earlier
        return _Level(inside.astype(f32), pairs if self._visible is None else pairs & self._visible)

    def no_pairs(self) -> Pairs:
        """Return zeros (C, C) for each reader and writer."""
        return [[self.program.pairs() for _ in self._each] for _ in self._each]

    def nothing(self) -> list[jax.Array]:
        """Return zeros (C, V) for each reader or writer."""
        return [self.program.sums() for _ in self._each]

    def written(self, pairs: Pairs, read: jax.Array) -> list[jax.Array]:
        """Return v and, if the recurrence erases, u; then `read` is S^T (d a)."""
        v = self.program.values(self.program.v, self.tokens)
        if not self.program.call.erases:
            return [v]
        return [v, precise(self._inverse(pairs), precise(pairs[1][0], v, into=read))]

    def right_side(self, pairs: Pairs, of_y: jax.Array, of_end: jax.Array) -> jax.Array:
        """Return dR; `of_end` is (e b) dS'."""
        of_written = self.program.dot(pairs[0][1], of_y, (0, 0), of_end)
        return precise(self._inverse(pairs), of_written, (0, 0))

    def _inverse(self, pairs: Pairs) -> jax.Array:
        return inverse(-pairs[1][1], self.differing)


class _Channels:
    """A part of the key channels of a chunk."""

    def __init__(self, chunk: _Chunk, part: Any):
        self._chunk, program, tokens = chunk, chunk.program, chunk.tokens
        self.q, k = program.queries_and_keys(tokens, part)
        erasing = [program.keys(ref, tokens, part) for ref in program.erasing]
        steps = program.keys(program.log_decay, tokens, part)
        self._steps = jnp.where(steps < LEAST, LEAST, steps)  # Triton's maximum would turn NaN into a number
        self.gate = jnp.exp(self._steps)
        self.readers = [self.gate * self.q if program.call.inclusive else self.q, *erasing[:1]]
        self.writers = [k, *erasing[1:]]

    @property
    def since(self) -> jax.Array:
        """d, (C, P)"""
        return self._decay(self._chunk.before, self._chunk.since)

    @property
    def until(self) -> jax.Array:
        """e, (C, P)"""
        return self._decay(self._chunk.after, self._chunk.until)

    @property
    def across(self) -> jax.Array:
        """d_C, (P, 1)"""
        decay, kept = jnp.exp(jnp.sum(self._steps, axis=0))[:, None], self._chunk.across
        return decay if kept is None else jnp.where(kept, decay, 0)

    def from_start(self) -> list[jax.Array]:
        """Return the readers, decayed since the start of the chunk."""
        since = self.since
        return [since * x for x in self.readers]

    def to_end(self) -> list[jax.Array]:
        """Return the writers, decayed until the end of the chunk."""
        until = self.until
        return [until * x for x in self.writers]

    def decayed(self, level: _Level) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
        """Return readers and writers, decayed since or until the middle of their block, and that factor."""
        factor = self._decay(level.steps, None)
        return [factor * x for x in self.readers], [factor * x for x in self.writers], factor

    def add_pairs(self, pairs: Pairs) -> Pairs:
        """Add the products of these channels."""
        pairs = [list(row) for row in pairs]
        if self._chunk.program.call.inclusive:
            for n, y in enumerate(self.writers):
                own = jnp.sum(self.q * y, axis=1, keepdims=True)
                pairs[0][n] += jnp.where(self._chunk.same, own, 0)

        def of_level(number: Any, pairs: Any) -> Any:
            level = self._chunk.level(number)
            readers, writers, _ = self.decayed(level)
            return [
                [
                    into + jnp.where(level.visible, self._chunk.dots[m](x, y, (1, 1)), 0)
                    for y, into in zip(writers, row, strict=True)
                ]
                for m, (x, row) in enumerate(zip(readers, pairs, strict=True))
            ]

        return lax.fori_loop(0, self._chunk.levels, of_level, pairs)

    def total(self, of_readers: Sequence[jax.Array], of_writers: Sequence[jax.Array]) -> jax.Array:
        """Return the gradient of the exponents of factors of readers and writers, given those of these."""
        arrays = [*zip(self.readers, of_readers, strict=False), *zip(self.writers, of_writers, strict=False)]
        return _sum(x * of_x for x, of_x in arrays)

    def _decay(self, steps: jax.Array, kept: jax.Array | None) -> jax.Array:
        decay = jnp.exp(selected_sums(steps, self._steps))
        return decay if kept is None else jnp.where(kept, decay, 0)


def _sums(some: Sequence[jax.Array], others: Sequence[jax.Array]) -> list[jax.Array]:
    return [x + y for x, y in zip(some, others, strict=True)]


def _sum(arrays: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, arrays)
