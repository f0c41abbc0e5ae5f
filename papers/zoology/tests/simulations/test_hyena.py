"""Hyena by BaseConv, in columns and in rows, and BaseConv by Hyena."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from papers.check import EXACT
from papers.zoology.base_conv import stack
from papers.zoology.simulations.hyena import Hyena, hyena_by_columns
from papers.zoology.simulations.hyena_of_base_conv import (
    hyena_of_base_conv,
    with_positions,
    without_positions,
)
from papers.zoology.simulations.hyena_rows import hyena_by_rows
from papers.zoology.simulations.instances import random_hyena, random_layer, weights

seeds, lengths, widths, orders = (
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 6),
)


def off(actual, expected):
    return np.abs(actual - expected).max()


@given(seeds, orders, lengths, widths, st.booleans())
def test_both_positions_of_the_input(seed, order, length, width, short):
    rng = np.random.default_rng(seed)
    hyena = random_hyena(rng, order, length, width, short)
    u = rng.normal(size=(length, width))
    for by, extra, shape in (
        (hyena_by_columns, 1, (length, 2 * width)),
        (hyena_by_rows, 2, (7 * length, width)),
    ):
        simulated = by(hyena)
        assert off(simulated(u), hyena(u)) < EXACT
        assert simulated.account.layers == order + extra + short
        assert simulated.shape == shape


def test_rows_leave_no_trace():
    """But for the operator itself: the ring can be used again."""
    rng = np.random.default_rng(0)
    for order in (1, 2, 5):
        simulated = hyena_by_rows(random_hyena(rng, order, 4, 3))
        y = simulated(rng.normal(size=(4, 3)), simulated.shape)
        assert not y[4:].any()


def test_the_definition_is_what_the_ops_compute():
    rng = np.random.default_rng(1)
    hyena, u = random_hyena(rng, 2, 6, 3), rng.normal(size=(6, 3))
    conv = jax.jit(lambda x, taps: ops.long_conv(x[None], taps, implementation="reference")[0])
    with jax.enable_x64(True):
        short = np.tile(hyena.short, (1, 3))
        z = conv(u @ hyena.values, short)
        for gate, long in hyena.steps:
            z = np.asarray(conv(u @ gate, short)) * np.asarray(conv(z, long))
    assert z.dtype == np.float64
    assert off(hyena(u), z) < EXACT


@given(seeds, st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
def test_base_conv_by_as_many_hyenas(seed, count, length, width):
    rng = np.random.default_rng(seed)
    layers = [random_layer(rng, length, width) for _ in range(count)]
    u = rng.normal(size=(length, width))
    y = with_positions(u)
    for layer in layers:
        y = hyena_of_base_conv(layer)(y)
    assert off(y, with_positions(stack(layers)(u))) < EXACT
    assert off(without_positions(y), stack(layers)(u)) < EXACT


@given(seeds, orders)
def test_without_positions_a_hyena_has_no_biases(seed, order):
    """It is homogeneous: a layer that is not cannot be one."""
    rng = np.random.default_rng(seed)
    hyena, u = random_hyena(rng, order, 5, 3), rng.normal(size=(5, 3))
    assert off(hyena(2 * u), 2 ** (order + 1) * hyena(u)) < EXACT


def test_order_1_by_hand():
    """v = (1, 2), p = (2, 4), h = (1, 3): the second token reads 2 + 3 = 5."""
    hyena = Hyena(np.full((1, 1, 1), 2.0), np.ones((1, 1)), np.array([[[1.0], [3.0]]]))
    u = np.array([[1.0], [2.0]])
    np.testing.assert_array_equal(hyena(u), [[2], [20]])


def test_wrong_arguments():
    rng = np.random.default_rng(2)
    square, taps = weights(rng, 3, 3), weights(rng, 4, 3)
    with pytest.raises(ValueError, match=r"gates has shape \(2, 3, 3\): expected \(1, 3, 3\)"):
        Hyena(np.stack([square] * 2), square, taps[None])
    with pytest.raises(ValueError, match=r"short has shape \(4, 3\): expected \(4, 1\)"):
        Hyena(square[None], square, taps[None], taps)
    with pytest.raises(ValueError, match=r"layer\.circular = True: expected False"):
        hyena_of_base_conv(replace(random_layer(rng, 4, 3), circular=True))
