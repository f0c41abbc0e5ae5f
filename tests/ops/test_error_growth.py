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


def _linear_attention(rng: np.random.Generator) -> Arrays:
    q, k = rng.normal(size=(2, 1, LENGTH, 2, 4))
    return {"q": q, "k": k, "v": rng.normal(size=(1, LENGTH, 2, 8))}


def _selective_scan(rng: np.random.Generator) -> Arrays:
    shape, states = (1, LENGTH, 8), 4
    B, C = rng.normal(size=(2, 1, LENGTH, states))
    return {
        "x": rng.normal(size=shape),
        "dt": np.exp(rng.uniform(-14, -5, size=shape)),
        "A": -np.exp(rng.uniform(-1, 1, size=(8, states))),
        "B": B,
        "C": C,
    }


def _wkv(rng: np.random.Generator) -> Arrays:
    k, v = rng.normal(size=(2, 1, LENGTH, 8))
    return {
        "k": 3 * k,
        "v": v,
        "log_decay": -np.exp(rng.uniform(-14, -5, size=8)),
        "bonus": rng.normal(size=8),
    }


def _diagonal_ssm(rng: np.random.Generator) -> Arrays:
    """H3's modes at their initial values, steps from 0.001 to 0.1."""
    heads, modes = 4, 8
    a = np.stack(
        [np.full((heads, modes), -0.5), np.broadcast_to(np.pi * np.arange(modes), (heads, modes))], -1
    )
    b, c = np.broadcast_to([1.0, 0.0], a.shape), rng.normal(size=a.shape)
    steps = np.exp(rng.uniform(np.log(1e-3), np.log(0.1), size=heads))
    return {"x": rng.normal(size=(1, LENGTH, heads, 2)), "a": a, "b": b, "c": c, "dt": steps}


def _run_diagonal_ssm(x: Any, a: Any, b: Any, c: Any, dt: Any, **options: Any) -> Any:
    return ops.diagonal_ssm(x, *ops.discretize_bilinear(a, b, c, dt), **options)


CASES: dict[str, tuple[Callable[..., Any], Callable[[np.random.Generator], Arrays]]] = {
    "delta_rule": (ops.delta_rule, _delta_rule),
    "diagonal_ssm": (_run_diagonal_ssm, _diagonal_ssm),
    "linear_attention": (ops.taylor_attention, _linear_attention),
    "linear_recurrence": (ops.linear_recurrence, _linear_recurrence),
    "selective_scan": (ops.selective_scan, _selective_scan),
    "wkv": (ops.wkv, _wkv),
}
"""By name: the op with an output per token, and its arguments."""

TOLERANCES = {"wkv": 5e-5}
"""Where `FLOAT32` is not kept. RWKV-4's decay is the same in every step: its rounding adds up instead of
averaging out, 8192 times 3e-8 at worst; measured 1.9e-5."""


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
    assert errors.max() < TOLERANCES.get(case, FLOAT32)
