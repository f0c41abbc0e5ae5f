"""How far float32 states drift from float64 over long texts: every recurrence, gates near 1.

A gate near 1 forgets nothing, so that every rounding stays in the sum. Shown by pytest -rP.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.tolerances import FLOAT32

LENGTH = 8192

Arrays = dict[str, np.ndarray]


def _linear_recurrence(rng: np.random.Generator) -> Arrays:
    shape = (1, LENGTH, 2, 8)
    q, k, v = rng.normal(size=(3, *shape))
    return {"q": q, "k": k, "v": v, "log_decay": -np.exp(rng.uniform(-14, -5, size=shape))}


def _delta_rule(rng: np.random.Generator) -> Arrays:
    shape = (1, LENGTH, 2, 8)
    q, k, v = rng.normal(size=(3, *shape))
    return {
        "q": q,
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": v,
        "beta": np.exp(rng.uniform(-9, 0.6, size=shape[:3])),  # barely written to nearly reflected
        "log_decay": -np.exp(rng.uniform(-14, -5, size=shape[:3])),
    }


CASES: dict[str, tuple[Callable[..., Any], Callable[[np.random.Generator], Arrays]]] = {
    "delta_rule": (ops.delta_rule, _delta_rule),
    "linear_recurrence": (ops.linear_recurrence, _linear_recurrence),
}
"""By name: the op with an output per token, and its arguments."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_float32_keeps_up(case):
    op, draw = CASES[case]
    arguments = draw(np.random.default_rng(0))
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(op)(**{name: jnp.asarray(x) for name, x in arguments.items()}))
    y = jax.jit(op)(**{name: jnp.asarray(x, jnp.float32) for name, x in arguments.items()})
    errors = np.abs(np.asarray(y, np.float64) - exact).max(axis=tuple(i for i in range(exact.ndim) if i != 1))
    errors /= np.abs(exact).max()
    for end in (64, 512, 4096, LENGTH):
        print(f"{case}: tokens up to {end}: {errors[:end].max():.1e}")
    assert errors.max() < FLOAT32
