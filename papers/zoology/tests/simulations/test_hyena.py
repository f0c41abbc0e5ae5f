"""Hyena by BaseConv, in columns and in rows, and BaseConv by Hyena."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from papers.check import EXACT
from papers.zoology.base_conv import stack
from papers.zoology.simulations.hyena import hyena_by_columns
from papers.zoology.simulations.hyena_of_base_conv import (
    hyena_of_base_conv,
    with_positions,
    without_positions,
)
from papers.zoology.simulations.hyena_rows import hyena_by_rows
from papers.zoology.simulations.instances import random_hyena, random_layer

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
