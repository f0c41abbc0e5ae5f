"""Linear recurrences with a gate per head and their gradients, in chunks of C tokens.

With the decay D_ij = exp(g_{j+1} + ... + g_i) from token j to token i of a chunk, d_i that from its start to
token i, and e_j that from token j to its end,

    y_i = d_i S^T q_i + sum_j P_ij w_j,     P_ij = D_ij q_i . k_j  for j <= i
    S'  = d_C S + sum_j e_j k_j w_j^T

give the outputs and the state S' after the chunk from the state S (K, V) before it. W (C, V) is what the
tokens write: v, or by the delta rule (Yang et al., arXiv 2412.06464, section 3.3)

    W = (1 + A)^-1 R,                       A_ij = beta_i D_ij k_i . k_j  for j < i
    R_i = beta_i new_i,                     new_i = v_i - d_i S^T k_i

Gradients are those of these equations. Without the delta rule W is v, and there is no A:

    dW = P^T dy + e (k dS'),      dR = (1 + A)^-T dW,     dA = -dR W^T,     dP = dy W^T
    dS = d_C dS' + sum_i d_i (q_i dy_i^T - beta_i k_i dR_i^T)

`outputs` and `state_gradients` walk over the chunks, forward and backward, with their states in registers.
Given both states of every span, the spans do not depend on each other in `gradients`.

Exponents are sums of steps, never differences of sums: a gate may be 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.launch import barrier
from pallas_kernels.linear_recurrence.precision import inverse, precise
from pallas_kernels.linear_recurrence.program import (
    KEPT,
    KEY_PARTS,
    NUMBER_PARTS,
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


def outputs(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return y (B, N, G, R, V), the last state (B, G, R, K, V), and if `saves` that before each of J spans.

    Arguments: q and k (B, N, G, K), v (B, N, G, R, V), log_decay and, by the delta rule, beta (B, G, R, N),
    the first state, and starts (B, N) if there are segments. Channels of saved states are padded.
    """

    def step(program: Program, y: Any, tokens: Tokens, state: State) -> State:
        (kk, qk), (held, read) = _zeros(program)
        for i, part in enumerate(state):
            q, k = program.queries_and_keys(tokens, i)
            qk, read = program.dot(q, k, (1, 1), qk), program.dot(q, part, into=read)
            if call.erases:
                kk, held = precise(k, k, (1, 1), kk), precise(k, part, into=held)
        chunk = _Chunk(program, tokens, kk)
        _, written = chunk.written(program.values(program.v, tokens), held)
        program.put_values(y, tokens, program.dot(chunk.decay * qk, written, into=chunk.since * read))
        writes, parts = chunk.until * written, []
        for i, part in enumerate(state):
            _, k = program.queries_and_keys(tokens, i)
            parts.append(program.carry(k, writes, (0, 0), chunk.across * part))
        return tuple(parts)

    return run_forwards(step, arrays, call)


def state_gradients(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return the gradients of the first state, and of that after each of J spans, (B, G, R, J, K, V) padded.

    Arguments: those of `outputs`, with the gradients of y and of the last state instead of the first state.
    """

    def step(program: Program, of_y: Any, tokens: Tokens, of_state: State) -> State:
        (kk, qk), (of_end, _) = _zeros(program)
        for i, part in enumerate(of_state) if call.erases else ():
            q, k = program.queries_and_keys(tokens, i)
            kk, qk = precise(k, k, (1, 1), kk), program.dot(q, k, (1, 1), qk)
            of_end = precise(k, part, into=of_end)
        chunk, dy = _Chunk(program, tokens, kk), program.values(of_y, tokens)
        of_read, of_held, parts = chunk.since * dy, None, []
        if call.erases:
            of_right = chunk.right_side(program.dot(chunk.decay * qk, dy, (0, 0)), of_end)
            of_held = -chunk.since * chunk.beta * of_right
            barrier()  # else the compiler keeps all parts of q and k in registers
        for i, part in enumerate(of_state):
            q, k = program.queries_and_keys(tokens, i)
            part = program.dot(q, of_read, (0, 0), chunk.across * part)
            parts.append(part if of_held is None else precise(k, of_held, (0, 0), part))
        return tuple(parts)

    return run_backwards(step, arrays, call)


def gradients(*arrays: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """Return the gradients of q, k, v, log_decay and, by the delta rule, beta.

    Those of q and k (B, N, G, R, T, K), and of the numbers (B, G, R, T, N), are of each head and each of T
    tiles of value channels. Arguments: those of `outputs`, with the gradient of y, the states before each
    span and the gradients of those after it instead of the first state.
    """

    def body(program: Program, of_y: Any, states: Any, of_states: Any, *results: Any) -> None:
        of_q, of_k, of_v, of_log_decay, *of_beta = results
        dot, tokens = program.dot, program.tokens(program.span, 0)

        def part(i: Any) -> tuple[jax.Array, ...]:
            return *program.queries_and_keys(tokens, i), program.kept(states, i), program.kept(of_states, i)

        def add(i: Any, sums: Any) -> Any:
            (q, k, state, of_state), ((kk, qk), (held, of_end)) = part(i), sums
            qk, of_end = dot(q, k, (1, 1), qk), program.carry(k, of_state, into=of_end)
            if call.erases:
                kk, held = precise(k, k, (1, 1), kk), precise(k, state, into=held)
            return (kk, qk), (held, of_end)

        (kk, qk), (held, of_end) = lax.fori_loop(0, program.parts, add, _zeros(program))
        chunk, dy = _Chunk(program, tokens, kk), program.values(of_y, tokens)
        new, written = chunk.written(program.values(program.v, tokens), held)
        of_right = chunk.right_side(dot(chunk.decay * qk, dy, (0, 0)), of_end)
        of_new = chunk.beta * of_right if call.erases else of_right
        program.put_values(of_v, tokens, of_new)

        of_qk, of_kk = chunk.decay * dot(dy, written, (1, 1)), program.pairs()
        of_read, of_held, writes = chunk.since * dy, -chunk.since * of_new, chunk.until * written
        for ref in of_beta:
            of_lower = jnp.where(chunk.earlier, -chunk.decay * dot(of_right, written, (1, 1)), 0)
            program.put_numbers(ref, tokens, jnp.sum(of_right * new, axis=1) + jnp.sum(of_lower * kk, axis=1))
            of_kk = chunk.beta * of_lower

        def finish(i: Any, sums: Any) -> Any:
            (q, k, state, of_state), (up_to, after, across) = part(i), sums
            dq, dk = dot(of_read, state, (1, 1)), dot(writes, of_state, (1, 1))
            up_to, after = up_to + jnp.sum(q * dq, axis=1), after + jnp.sum(k * dk, axis=1)
            program.put_keys(of_q, tokens, i, call.scale * dot(of_qk, k, into=dq))
            dk = dot(of_qk, q, (0, 0), dk)
            if call.erases:
                of_k_held = dot(of_held, state, (1, 1))
                up_to += jnp.sum(k * of_k_held, axis=1)
                dk = dot(of_kk, k, (0, 0), dot(of_kk, k, into=dk + of_k_held))
            program.put_keys(of_k, tokens, i, dk)
            return up_to, after, across + jnp.sum(state * of_state)

        # Gradients of exponents: a gate is in those up to its token and later ones, in those from earlier
        # tokens to the end, and in that across the chunk.
        pairs = of_kk * kk + of_qk * qk
        up_to = jnp.sum(pairs, axis=1) - jnp.sum(pairs, axis=0)
        sums = up_to, jnp.zeros_like(up_to), jnp.zeros((), f32)
        up_to, after, across = lax.fori_loop(0, program.parts, finish, sums)
        steps = jnp.sum(jnp.where(chunk.earlier, after[None, :], up_to[None, :]), axis=1)
        program.put_numbers(of_log_decay, tokens, steps + chunk.across * across)

    results = [*[(KEY_PARTS, f32)] * 2, (VALUES, arrays[2].dtype), *[(NUMBER_PARTS, f32)] * (1 + call.erases)]
    return run(call, "gradients", body, arrays, [VALUES, KEPT, KEPT], results, by_span=True)


def _zeros(program: Program) -> Any:
    """Return sums over the key channels: two (C, C) and two (C, V)."""
    return (program.pairs(), program.pairs()), (program.sums(), program.sums())


class _Chunk:
    """The equations of a chunk; columns are (C, 1)."""

    def __init__(self, program: Program, tokens: Tokens, kk: jax.Array):
        """`kk` has k_i . k_j if the recurrence erases."""
        log_decay, beta, starts = program.numbers(tokens)
        index = jnp.arange(program.chunk, dtype=jnp.int32)
        row, column = index[:, None], index[None, :]
        self.earlier = column < row
        """(C, C) whether the token of the column is before that of the row"""
        steps = jnp.where(self.earlier, log_decay[:, None], 0)
        decay = jnp.where(column <= row, jnp.exp(jnp.cumsum(steps, axis=0)), 0)
        since = jnp.exp(jnp.sum(jnp.where(column <= row, log_decay[None, :], 0), axis=1))
        until, across = jnp.exp(jnp.sum(steps, axis=0)), jnp.exp(jnp.sum(log_decay))
        if starts is not None:
            last = jnp.max(starts)
            decay = jnp.where(column >= starts[:, None], decay, 0)
            since, until = jnp.where(starts < 0, since, 0), jnp.where(index >= last, until, 0)
            across = jnp.where(last < 0, across, 0)
        self.decay, self.since, self.until, self.across = decay, since[:, None], until[:, None], across
        """D, d, e and d_C; 0 between tokens of different segments"""
        self.beta: Any = None
        self._inverse: Any = None
        if beta is not None:
            self.beta = beta[:, None]
            self._inverse = inverse(jnp.where(self.earlier, self.beta * decay * kk, 0), row ^ column)

    def written(self, v: jax.Array, held: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return new, or v, and W; `held` is k S."""
        if self._inverse is None:
            return v, v
        new = v - self.since * held
        return new, precise(self._inverse, self.beta * new)

    def right_side(self, of_written: jax.Array, of_end: jax.Array) -> jax.Array:
        """Return dR; `of_written` is P^T dy, `of_end` k dS'."""
        of_written += self.until * of_end
        return of_written if self._inverse is None else precise(self._inverse, of_written, (0, 0))
