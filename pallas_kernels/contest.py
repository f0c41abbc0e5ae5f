"""Functions that compute the same take turns: whose results agree, and how long each one takes."""

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.flags import one_line

SAMPLE_SECONDS = 0.02
"""A sample lasts at least this long: many calls, so that launching and waiting do not count."""

ROUNDS = 5
"""At least so many samples of each contestant, whatever the budget."""

AGREEMENT = 0.03
"""Largest difference from the first one's results, over the largest result: variants round bfloat16 operands
in another order, which costs some 0.005; a wrong index costs far more."""


def contest(
    functions: Mapping[Hashable, Callable[..., Any]],
    arguments: Sequence[jax.ShapeDtypeStruct],
    seconds: float,
    carried: Mapping[int, int] | None = None,
) -> tuple[dict[Hashable, float], dict[Hashable, str]]:
    """Measure each function, `seconds` long; the first one's results are what the others' should be.

    Returns:
        Seconds per call of those that run and agree, and why the others were left out.
    """
    arrays = example(arguments)
    expected = jax.block_until_ready(jax.jit(next(iter(functions.values())))(*arrays))
    contestants: dict[Hashable, Callable[[], Any]] = {}
    refused: dict[Hashable, str] = {}
    for name, function in functions.items():
        try:
            results = jax.block_until_ready(jax.jit(function)(*arrays))
        except Exception as error:  # does not fit this GPU: the others may
            refused[name] = one_line(error)
            continue
        difference = disagreement(expected, results)
        if difference <= AGREEMENT:
            contestants[name] = caller(function, arrays, carried or {})
        else:
            refused[name] = f"results differ by {difference:.2g} of the largest"
    return dict(zip(contestants, measure(list(contestants.values()), seconds), strict=True)), refused


def example(arguments: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Numbers from 0 to 1 for floats, zeros for whole numbers and truths.

    With both signs a normaliser might be a small difference, and magnify harmless roundings.
    """
    keys = jax.random.split(jax.random.key(0), len(arguments))
    return [
        jax.random.uniform(key, x.shape, x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.zeros(x.shape, x.dtype)
        for key, x in zip(keys, arguments, strict=True)
    ]


def disagreement(expected: Any, results: Any) -> float:
    """Largest difference over the largest expected number, of the worst array; inf where not finite."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(results), strict=True):
        a, b = (x.astype(jnp.float32) for x in (a, b))
        difference = float(jnp.max(jnp.abs(a - b))) / max(float(jnp.max(jnp.abs(a))), 1e-30)
        worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def caller(
    function: Callable[..., Any], arguments: Sequence[jax.Array], carried: Mapping[int, int]
) -> Callable[[], Any]:
    """A function that makes one call and does not wait; carried arguments are donated and replaced.

    Without the donation a kernel that works in place would first be handed a copy of its state.
    """
    compiled = jax.jit(function, donate_argnums=tuple(carried))
    current = [jnp.copy(x) if index in carried else x for index, x in enumerate(arguments)]

    def call() -> Any:
        results = compiled(*current)
        for argument, result in carried.items():
            current[argument] = results[result]
        return results

    return call


def measure(
    contestants: Sequence[Callable[[], Any]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[Any], Any] = jax.block_until_ready,
) -> list[float]:
    """Median seconds per call of each contestant; they take turns, `seconds` for each in all.

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
    for call in contestants:
        timed(call, 1)  # compiles
        calls.append(math.ceil(SAMPLE_SECONDS / max(timed(call, 3), 1e-7)))
    samples: list[list[float]] = [[] for _ in contestants]
    spent, turn = 0.0, 0
    while turn < ROUNDS or spent < seconds * len(contestants):
        order = [(turn + i) % len(contestants) for i in range(len(contestants))]
        for i in order:
            samples[i].append(timed(contestants[i], calls[i]))
            spent += samples[i][-1] * calls[i]
        turn += 1
    return [statistics.median(taken) for taken in samples]
