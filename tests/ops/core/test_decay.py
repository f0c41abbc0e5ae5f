"""Products of gates against loops, shut and open gates included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from based_jax.ops.core import decay
from tests.arrays import array
from tests.ops import draw
from tests.tolerances import FLOAT32, FLOAT64, assert_close

CASES = [(1, True, True), (5, False, True), (48, True, True), (48, False, False)]
"""one token, one block, and three blocks; inclusive; in float64"""


def gates(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Logarithms of gates: open, shut, and nearly shut, so that running sums of them lose digits."""
    return rng.choice([0.0, -1e-3, -0.5, -1e4, -np.inf], size=shape, p=[0.2, 0.4, 0.3, 0.05, 0.05])


def product(log_decay: np.ndarray, key: int, query: int, inclusive: bool) -> np.ndarray:
    """The definition: what the steps after `key` up to `query` leave."""
    return np.exp(log_decay[key + 1 : query + 1 if inclusive else query].sum(0))


@pytest.mark.parametrize(("size", "inclusive", "wide"), CASES)
def test_products_are_the_loops(size, inclusive, wide):
    width = 2
    everything = jax.jit(
        lambda x, y, g: (
            decay.pair_products(x, y, g, inclusive),
            decay.pair_products(x, y, g[:, :1], inclusive),
            decay.between(g[:, 0], inclusive),
            decay.since_start(g, inclusive),
            decay.until_end(g),
            decay.across(g),
        )
    )

    @settings(max_examples=4)
    @given(draw.seeds)
    def law(seed):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, size, width))
        g = gates(rng, size, width)
        pairs = np.zeros((3, size, size))
        for i in range(size):
            for j in range(i + 1):
                left = product(g, j, i, inclusive)
                pairs[:, i, j] = (x[i] * y[j] * left).sum(), (x[i] * y[j] * left[0]).sum(), left[0]
        until = np.stack([np.exp(g[j + 1 :].sum(0)) for j in range(size)])
        since = np.stack([np.exp(g[: i + inclusive].sum(0)) for i in range(size)])
        dtype, tolerance = (jnp.float64, FLOAT64) if wide else (jnp.float32, FLOAT32)
        with jax.enable_x64(wide):
            got = everything(*(array(a, dtype) for a in (x, y, g)))
            for ours, expected in zip(got[:3], pairs, strict=True):
                assert np.isfinite(ours).all()
                assert_close(np.tril(ours), expected, tolerance)
            assert_close(got[3:], (since, until, np.exp(g.sum(0))), tolerance)

    law()
