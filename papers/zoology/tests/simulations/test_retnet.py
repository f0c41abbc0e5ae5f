"""RetNet by BaseConv: recurrent, parallel and in four layers."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from papers.check import EXACT
from papers.zoology.simulations.instances import random_retnet
from papers.zoology.simulations.retnet import RetNet, retnet_by_columns


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 5))
def test_three_forms(seed, length, width):
    rng = np.random.default_rng(seed)
    retnet, u = random_retnet(rng, width), rng.normal(size=(length, width))
    simulated = retnet_by_columns(retnet, length)
    assert np.abs(retnet.parallel(u) - retnet(u)).max() < EXACT
    assert np.abs(simulated(u) - retnet(u)).max() < EXACT
    assert (simulated.account.layers, simulated.shape) == (4, (length, width**2 + width))


def test_layers_do_not_depend_on_the_length():
    retnet = random_retnet(np.random.default_rng(0), 2)
    assert {retnet_by_columns(retnet, length).account.layers for length in (1, 2, 64)} == {4}


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_a_decay_at_the_ends(decay):
    """0 sees the token alone, 1 all that came."""
    rng = np.random.default_rng(1)
    square = random_retnet(rng, 3)
    retnet, u = RetNet(square.keys, square.queries, square.values, decay), rng.normal(size=(5, 3))
    assert np.abs(retnet_by_columns(retnet, 5)(u) - retnet(u)).max() < EXACT
    assert np.abs(retnet.parallel(u) - retnet(u)).max() < EXACT


def test_the_recurrence_is_the_op():
    rng = np.random.default_rng(2)
    retnet, u = random_retnet(rng, 3), rng.normal(size=(8, 3))
    q, k, v = ((u @ each)[None, :, None] for each in (retnet.queries, retnet.keys, retnet.values))
    recurrence = jax.jit(partial(ops.linear_recurrence, scale=1.0, implementation="reference"))
    with jax.enable_x64(True):
        y = np.asarray(recurrence(q, k, v, np.full((1, 1, 1), np.log(retnet.decay))))
    assert y.dtype == np.float64
    assert np.abs(retnet_by_columns(retnet, 8)(u) - y[0, :, 0]).max() < EXACT


def test_wrong_shape():
    square = np.eye(3)
    with pytest.raises(ValueError, match=r"values has shape \(3, 2\): expected \(3, 3\)"):
        RetNet(square, square, square[:, :2], 0.9)
    with pytest.raises(ValueError, match=r"u has shape \(4, 2\): expected \(N, 3\)"):
        RetNet(square, square, square, 0.9)(np.zeros((4, 2)))
