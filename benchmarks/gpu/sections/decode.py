"""Sections `decode` and `window`: one token, by batch (Based, Figures 6 and 7).

Steps run inside one program, as `generate` runs them, so that a step of some microseconds does not wait for
its launch. The state is donated and updated in place.
"""

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
from benchmarks.ops.mixers import placed

KEY_SIZE, SIZE, HEADS, WINDOW = 16, 64, 16, 64

LOOP_STEPS = 32
"""Number of tokens of one call."""

POSITION = 750
"""Number of tokens that every row has read: the window is full. The paper's last position."""

BATCHES = (128, 1, 32, 512, 8, 64, 2, 4, 16, 256)
"""Batches of Figures 6 and 7, those with a target first."""

NARROW = (32, 128, 512)
"""Batches that are also measured with a bfloat16 state."""


def decode_steps(session: Session) -> list[Step]:
    """List a step per batch."""
    if session.quick:
        return [_step("taylor_step", 2, 1)]
    steps = [_step("taylor_step", batch) for batch in BATCHES]
    narrow = [_step("taylor_step", batch, state="bfloat16") for batch in NARROW]
    return [*steps[:4], *narrow, *steps[4:]]


def window_steps(session: Session) -> list[Step]:
    """List a step per batch."""
    if session.quick:
        return [_step("window_step", 2, 1)]
    return [_step("window_step", batch, window=WINDOW) for batch in BATCHES]


def _step(op: str, batch: int, heads: int = HEADS, **facts: Any) -> Step:
    dtype = facts.get("state", "float32")
    name = f"B{batch}" + " bfloat16 state" * (dtype == "bfloat16")
    rows = partial(_candidates, op, batch, heads, dtype)
    return Step(name, candidates=rows, facts={"batch": batch, "heads": heads} | facts)


def _candidates(op: str, batch: int, heads: int, dtype: str, session: Session) -> list[Candidate]:
    """Time our kernel and XLA in a loop."""
    if op == "taylor_step":
        widths, state = (KEY_SIZE, KEY_SIZE, SIZE), ops.init_taylor_state(batch, heads, KEY_SIZE, SIZE, dtype)
        cost = io_model.taylor_step(batch, heads, KEY_SIZE, SIZE, state_itemsize=jnp.dtype(dtype).itemsize)
    else:
        widths, cache = (SIZE, SIZE, SIZE), ops.init_kv_cache(batch, WINDOW, heads, SIZE, SIZE, jnp.bfloat16)
        state = placed(cache, POSITION)
        cost = io_model.window_step(batch, heads, WINDOW, SIZE)
    steps = 2 if session.quick else LOOP_STEPS
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(steps, batch, heads, width) for width in widths]
    tokens = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]

    def prepare(name: str) -> Prepared:
        require(op, name)
        if name == "xla" and dtype != "float32":
            raise UnavailableError("keeps its state in float32")

        def run(tokens: Any, state: Any) -> Any:
            def body(state: Any, token: Any) -> Any:
                y, state = getattr(ops, op)(*token, state, implementation=name)
                return state, y

            state, y = lax.scan(body, state, tokens)
            return y, state

        return jitted(run, [tokens, state], {1: 1}, per_call=steps)

    least = bound(session, cost)
    return [
        Candidate(f"{name} loop", partial(prepare, name), bound=least, ours=name == "pallas")
        for name in ("pallas", "xla")
    ]
