"""Functions that compute the same: whether their results agree, and how long each takes, in turns."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

SAMPLE_SECONDS = 0.02
"""A sample lasts at least this long: many calls, so that launching and waiting do not count."""

ROUNDS = 5
"""At least so many samples of each candidate, whatever the budget."""

AGREEMENT = 0.03
"""Largest difference from the reference's results, over the largest result: variants round bfloat16 operands
in another order, which costs some 0.005; a wrong index costs far more."""


def example(
    arguments: Sequence[jax.ShapeDtypeStruct], fill: Mapping[int, int] | None = None
) -> list[jax.Array]:
    """Return numbers from 0 to 1 for floats; for whole numbers what `fill` has for the argument, or zeros.

    With both signs a normaliser might be a small difference, and magnify harmless roundings.
    """
    keys, fill = jax.random.split(jax.random.key(0), len(arguments)), fill or {}
    return [
        jax.random.uniform(key, x.shape, x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.full(x.shape, fill.get(i, 0), x.dtype)
        for i, (key, x) in enumerate(zip(keys, arguments, strict=True))
    ]


def disagreement(expected: Any, results: Any) -> float:
    """Largest difference over the largest expected number, of the worst array; inf where not finite."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(results), strict=True):
        a, b = (x.astype(jnp.float32) for x in (a, b))
        difference = float(jnp.max(jnp.abs(a - b))) / max(float(jnp.max(jnp.abs(a))), 1e-30)
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def repeatedly(
    compiled: Callable[..., Any], arguments: Sequence[jax.Array], carried: Mapping[int, int]
) -> Callable[[], Any]:
    """Return a function that makes one call and does not wait; `carried` maps arguments to results.

    Such arguments are donated, and replaced by the result: without the donation a kernel that works in place
    would first be handed a copy of its state.
    """
    current = [jnp.copy(x) if index in carried else x for index, x in enumerate(arguments)]

    def call() -> Any:
        results = compiled(*current)
        for argument, result in carried.items():
            current[argument] = results[result]
        return results

    return call


def measure(
    candidates: Sequence[Callable[[], Any]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[Any], Any] = jax.block_until_ready,
) -> list[float]:
    """Return median seconds per call of each candidate; they take turns, `seconds` for each in all.

    Taking turns lets a clock that slows down, or a busy moment of the machine, hit all alike.
    """

    def timed(call: Callable[[], Any], calls: int) -> float:
        start = clock()
        result = None
        for _ in range(calls):
            result = call()
        wait(result)
        return (clock() - start) / calls

    calls = []
    for call in candidates:
        timed(call, 1)  # warms up
        calls.append(math.ceil(SAMPLE_SECONDS / max(timed(call, 3), 1e-7)))
    samples: list[list[float]] = [[] for _ in candidates]
    spent, turn = 0.0, 0
    while turn < ROUNDS or spent < seconds * len(candidates):
        order = [(turn + i) % len(candidates) for i in range(len(candidates))]
        for i in order:
            samples[i].append(timed(candidates[i], calls[i]))
            spent += samples[i][-1] * calls[i]
        turn += 1
    return [statistics.median(taken) for taken in samples]
