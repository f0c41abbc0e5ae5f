"""RWKV's two convolutions by BaseConv."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from papers.check import EXACT
from papers.zoology.simulations.instances import random_rwkv, weights
from papers.zoology.simulations.rwkv import RWKV, decay_filters, rwkv_by_columns


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 5))
def test_three_layers(seed, length, width):
    rng = np.random.default_rng(seed)
    rwkv = random_rwkv(rng, length, width)
    e, u, r = rng.normal(size=(3, length, width))
    simulated = rwkv_by_columns(rwkv)
    y = simulated(np.concatenate([e, u, r], axis=1))
    numerator, denominator = rwkv(e, u, r)
    assert np.abs(y - np.concatenate([numerator, denominator, r], axis=1)).max() < EXACT
    assert (simulated.account.layers, simulated.shape) == (3, (length, 3 * width))


def test_after_the_division_it_is_the_op():
    rng = np.random.default_rng(0)
    length, width = 9, 4
    u, k, q = rng.normal(size=(3, length, width))
    log_decay, bonus = -rng.uniform(size=width), rng.normal(size=width)
    values, shift = weights(rng, width, width), np.zeros((length, width))
    shift[:2] = [[0.3, 1, 0, 0.5], [0.7, 0, 1, 0.5]]
    rwkv = RWKV(values, shift, decay_filters(length, log_decay, bonus))
    r = 1 / (1 + np.exp(-q))
    y = rwkv_by_columns(rwkv)(np.concatenate([np.exp(k), u, r], axis=1))

    @jax.jit
    def average(u):
        v = (shift[0] * u + shift[1] * ops.token_shift(u)) @ values
        return ops.wkv(
            jnp.asarray(k)[None], v, *map(jnp.asarray, (log_decay, bonus)), implementation="reference"
        )

    with jax.enable_x64(True):
        expected = r * np.asarray(average(u[None]))[0]
    assert expected.dtype == np.float64
    assert np.abs(y[:, :width] / y[:, width : 2 * width] - expected).max() < EXACT


def test_filters_by_hand():
    log = np.log(np.array([0.5, 0.1]))
    filters = decay_filters(4, log, np.log(np.array([3.0, 7.0])))
    np.testing.assert_allclose(filters, [[3, 7], [1, 1], [0.5, 0.1], [0.25, 0.01]], rtol=EXACT)
    assert decay_filters(1, log, log).shape == (1, 2)
    with pytest.raises(ValueError, match=r"bonus has shape \(1,\): expected \(2,\)"):
        decay_filters(4, log, log[:1])


def test_wrong_shapes():
    rwkv = random_rwkv(np.random.default_rng(1), 4, 3)
    with pytest.raises(ValueError, match=r"shift has shape \(3, 3\): expected \(4, 3\)"):
        replace(rwkv, shift=rwkv.shift[1:])
    with pytest.raises(ValueError, match=r"receptance has shape \(4, 2\): expected \(4, 3\)"):
        rwkv(np.zeros((4, 3)), np.zeros((4, 3)), np.zeros((4, 2)))
