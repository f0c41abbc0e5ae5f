"""Compare variants of one kernel: example arguments, agreement of the results, calls to be timed."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

AGREEMENT = 0.03
"""Tolerance: largest difference from the reference's results over the largest result. Variants round bfloat16
operands in another order, which gives some 0.005; a wrong index gives far more."""


def example(
    arguments: Sequence[jax.ShapeDtypeStruct], fill: Mapping[int, int] | None = None
) -> list[jax.Array]:
    """Return random floats from 0 to 1; integers are the argument's value in `fill`, or zeros.

    With both signs a normaliser might be near 0 and amplify harmless rounding errors.
    """
    keys, fill = jax.random.split(jax.random.key(0), len(arguments)), fill or {}
    return [
        jax.random.uniform(key, x.shape, x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.full(x.shape, fill.get(i, 0), x.dtype)
        for i, (key, x) in enumerate(zip(keys, arguments, strict=True))
    ]


def disagreement(expected: Any, results: Any) -> float:
    """Return the largest difference over the largest expected number, over all arrays; inf if not finite."""
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

    Such arguments are donated and replaced by the result: without donation a kernel that works in place would
    first get a copy of its state.
    """
    current = [jnp.copy(x) if index in carried else x for index, x in enumerate(arguments)]

    def call() -> Any:
        results = compiled(*current)
        for argument, result in carried.items():
            current[argument] = results[result]
        return results

    return call


def once(compiled: Callable[..., Any], arguments: Sequence[jax.Array], carried: Mapping[int, int]) -> Any:
    """Return the results of one call on copies, which it may overwrite."""
    copies = [jnp.copy(x) if i in carried else x for i, x in enumerate(arguments)]
    return jax.block_until_ready(compiled(*copies))
