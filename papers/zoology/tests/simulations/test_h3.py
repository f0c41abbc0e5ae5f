"""H3 by BaseConv."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from papers.check import EXACT
from papers.zoology.base_conv import convolve
from papers.zoology.simulations.h3 import h3_by_columns, hyena_of_h3
from papers.zoology.simulations.instances import random_h3


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 5))
def test_three_layers(seed, length, width):
    rng = np.random.default_rng(seed)
    h3, u = random_h3(rng, length, width), rng.normal(size=(length, width))
    simulated = h3_by_columns(h3)
    assert np.abs(simulated(u) - h3(u)).max() < EXACT
    assert np.abs(hyena_of_h3(h3)(u) - h3(u)).max() < EXACT
    assert (simulated.account.layers, simulated.shape) == (3, (length, 2 * width))


def test_the_diagonal_filter_is_the_op():
    """The state space of `mixers.H3`, for heads of one channel."""
    rng = np.random.default_rng(0)
    length, width, modes = 7, 3, 2
    h3, u, skip = random_h3(rng, length, width), rng.normal(size=(length, width)), rng.normal(size=width)
    log_a = np.stack([-rng.uniform(0.1, 1, (width, modes)), rng.uniform(0, 3, (width, modes))], axis=-1)
    weight = rng.normal(size=(width, modes, 2))
    rate, factor = log_a @ [1, 1j], weight @ [1, 1j]
    kernel = 2 * np.stack([(factor * np.exp(lag * rate)).sum(axis=1).real for lag in range(length)])
    kernel[0] += skip
    products = convolve(h3.shift, u @ h3.keys) * (u @ h3.values)
    state_space = jax.jit(partial(ops.diagonal_ssm, implementation="reference"))
    with jax.enable_x64(True):
        summed = np.asarray(state_space(products[None, :, :, None], log_a, weight, skip=skip))
    expected = (u @ h3.queries) * summed[0, :, :, 0]
    assert expected.dtype == np.float64
    assert np.abs(h3_by_columns(replace(h3, diagonal=kernel))(u) - expected).max() < EXACT


def test_wrong_shapes():
    h3 = random_h3(np.random.default_rng(1), 4, 3)
    with pytest.raises(ValueError, match=r"diagonal has shape \(3, 3\): expected \(4, 3\)"):
        replace(h3, diagonal=h3.diagonal[1:])
    with pytest.raises(ValueError, match=r"u has shape \(5, 3\): expected \(4, 3\)"):
        h3(np.zeros((5, 3)))
