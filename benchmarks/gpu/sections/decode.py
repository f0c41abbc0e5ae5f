"""Sections `decode` and `window`: one token, by batch (Based, Figures 6 and 7).

Steps run inside one program, as `generate` runs them, so that a step of some microseconds does not wait for
its launch. The state is donated and updated in place.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from based_jax import ops
from benchmarks.gpu import io_model
from benchmarks.gpu.sections.device import bound
from benchmarks.gpu.sections.session import Session, Step, UnavailableError, require
from benchmarks.gpu.sections.stopwatch import Candidate, Prepared, jitted

KEY_SIZE, SIZE, HEADS, WINDOW = 16, 64, 16, 64

LOOP_STEPS = 32
"""Number of tokens of one call."""

POSITION = 750
"""Number of tokens that every row has read: the window is full. The paper's last position."""

BATCHES = (128, 1, 32, 512, 8, 64, 2, 4, 16, 256)
"""Batches of Figures 6 and 7, those with a target first."""

NARROW = (32, 128, 512)
"""Batches that are also measured with a bfloat16 state."""

One = Callable[..., tuple[jax.Array, Any]]


def decode_steps(session: Session) -> list[Step]:
    """List a step per batch."""
    if session.quick:
        return [_step("B2", _decode, 2, 1)]
    steps = [_step(f"B{batch}", _decode, batch) for batch in BATCHES]
    narrow = [_step(f"B{batch} bfloat16 state", _decode, batch, state="bfloat16") for batch in NARROW]
    return [*steps[:4], *narrow, *steps[4:]]


def window_steps(session: Session) -> list[Step]:
    """List a step per batch."""
    if session.quick:
        return [_step("B2", _window, 2, 1)]
    return [_step(f"B{batch}", _window, batch, window=WINDOW) for batch in BATCHES]


def _step(name: str, rows: Callable[..., Any], batch: int, heads: int = HEADS, **facts: Any) -> Step:
    facts = {"batch": batch, "heads": heads} | facts
    dtype = facts.get("state", "float32")
    return Step(name, candidates=partial(rows, batch, heads, dtype), facts=facts)


def _decode(batch: int, heads: int, dtype: str, session: Session) -> list[Candidate]:
    cost = io_model.taylor_step(batch, heads, KEY_SIZE, SIZE, state_itemsize=jnp.dtype(dtype).itemsize)
    state = ops.init_taylor_state(batch, heads, KEY_SIZE, SIZE, jnp.dtype(dtype))

    def one(name: str) -> One:
        require("taylor_step", name)
        if name == "xla" and dtype != "float32":
            raise UnavailableError("keeps its state in float32")
        return partial(ops.taylor_step, implementation=name)

    return _rows(session, one, (KEY_SIZE, KEY_SIZE, SIZE), state, (batch, heads), bound(session, cost))


def _window(batch: int, heads: int, _: str, session: Session) -> list[Candidate]:
    cost = io_model.window_step(batch, heads, WINDOW, SIZE)
    cache = ops.init_kv_cache(batch, WINDOW, heads, SIZE, SIZE, jnp.bfloat16)
    stream = dataclasses.replace(cache.stream, length=jnp.full((batch,), POSITION, jnp.int32))
    cache = dataclasses.replace(cache, stream=stream)

    def one(name: str) -> One:
        require("window_step", name)
        return partial(ops.window_step, implementation=name)

    return _rows(session, one, (SIZE, SIZE, SIZE), cache, (batch, heads), bound(session, cost))


def _rows(
    session: Session,
    one: Callable[[str], One],
    widths: tuple[int, ...],
    state: Any,
    lead: tuple[int, int],
    least: float,
) -> list[Candidate]:
    """Time both implementations in a loop."""
    steps = 2 if session.quick else LOOP_STEPS
    keys = jax.random.split(jax.random.key(0), len(widths))
    tokens = [
        jax.random.normal(key, (steps, *lead, width), jnp.bfloat16)
        for key, width in zip(keys, widths, strict=True)
    ]

    def prepare(name: str) -> Prepared:
        function = one(name)

        def run(tokens: Any, state: Any) -> Any:
            def body(state: Any, token: Any) -> Any:
                y, state = function(*token, state)
                return state, y

            state, y = lax.scan(body, state, tokens)
            return y, state

        return jitted(run, [tokens, state], {1: 1}, per_call=steps)

    return [
        Candidate(f"{name} loop", partial(prepare, name), bound=least, ours=name == "pallas")
        for name in ("pallas", "xla")
    ]
