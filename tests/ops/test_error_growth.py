"""How far float32 states drift from float64 over long texts: every recurrence, gates near 1.

A gate near 1 forgets nothing, so that every rounding stays in the sum. Shown by pytest -rP.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from tests.tolerances import FLOAT32

LENGTH = 8192
OPS = {
    "delta_rule": ops.delta_rule,
    "diagonal_ssm": lambda x, *modes: ops.diagonal_ssm(x, *ops.discretize_bilinear(*modes)),
    "linear_attention": ops.taylor_attention,
    "linear_recurrence": ops.linear_recurrence,
    "selective_scan": ops.selective_scan,
    "wkv": ops.wkv,
}


def drawn(case: str) -> tuple[np.ndarray, ...]:
    """Arguments of an op."""
    rng = np.random.default_rng(0)

    def normal(*sizes: int) -> np.ndarray:
        return rng.normal(size=(1, LENGTH, *sizes))

    def small(*sizes: int) -> np.ndarray:
        return np.exp(rng.uniform(-14, -5, size=sizes))

    match case:
        case "linear_recurrence":
            return normal(2, 8), normal(2, 8), normal(2, 8), -small(1, LENGTH, 2, 8)
        case "delta_rule":  # barely written to nearly reflected
            k, beta = normal(2, 8), np.exp(rng.uniform(-9, 0.6, size=(1, LENGTH, 2)))
            k /= np.linalg.norm(k, axis=-1, keepdims=True)
            return normal(2, 8), k, normal(2, 8), beta, -small(1, LENGTH, 2)
        case "linear_attention":
            return normal(2, 4), normal(2, 4), normal(2, 8)
        case "selective_scan":
            rates = -np.exp(rng.uniform(-1, 1, size=(8, 4)))
            return normal(8), small(1, LENGTH, 8), rates, normal(4), normal(4)
        case "wkv":
            return 3 * normal(8), normal(8), -small(8), rng.normal(size=8)
    # H3's modes at their initial values, steps from 0.001 to 0.1
    a = np.stack([np.full((4, 8), -0.5), np.broadcast_to(np.pi * np.arange(8), (4, 8))], -1)
    b, c = np.broadcast_to([1.0, 0.0], a.shape), rng.normal(size=a.shape)
    return normal(4, 2), a, b, c, np.exp(rng.uniform(np.log(1e-3), np.log(0.1), size=4))


TOLERANCES = {"wkv": 5e-5}
"""Where `FLOAT32` is not kept. RWKV-4's decay is the same in every step: its rounding adds up instead of
averaging out, 8192 times 3e-8 at worst; measured 1.9e-5."""


@pytest.mark.slow
@pytest.mark.parametrize("case", OPS)
def test_float32_keeps_up(case):
    run, arguments = jax.jit(OPS[case]), drawn(case)
    with jax.enable_x64(True):
        exact = np.asarray(run(*map(jnp.asarray, arguments)))
    y = run(*(jnp.asarray(x, jnp.float32) for x in arguments))
    errors = np.abs(np.asarray(y, np.float64) - exact).max(axis=tuple(i for i in range(exact.ndim) if i != 1))
    errors /= np.abs(exact).max()
    for end in (64, 512, 4096, LENGTH):
        print(f"{case}: tokens up to {end}: {errors[:end].max():.1e}")
    assert errors.max() < TOLERANCES.get(case, FLOAT32)
