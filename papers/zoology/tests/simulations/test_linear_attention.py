"""Linear attention with the Taylor features by BaseConv."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import ops
from papers.check import EXACT
from papers.zoology.simulations.instances import random_linear_attention, weights
from papers.zoology.simulations.linear_attention import LinearAttention, linear_attention_by_columns

seeds, lengths, widths, sizes = (
    st.integers(low, high) for low, high in ((0, 2**32 - 1), (1, 9), (1, 5), (1, 3))
)


@given(seeds, lengths, widths, sizes, st.booleans(), st.sampled_from([1.0, math.sqrt(0.5)]))
def test_five_layers(seed, length, width, size, causal, square):
    rng = np.random.default_rng(seed)
    attention = random_linear_attention(rng, width, size, causal, square)
    u = rng.normal(size=(length, width))
    simulated = linear_attention_by_columns(attention, length)
    assert np.abs(simulated(u) - attention(u)).max() < EXACT * (1 + np.abs(attention(u)).max())
    features = 1 + size + size**2
    assert simulated.account.layers == 5
    assert simulated.shape == (length, features * width + 2 * size**2 + width)


@given(seeds, lengths, sizes)
def test_the_features_make_a_polynomial(seed, length, size):
    """qbar . kbar = 1 + s + s^2 for s = q . k."""
    rng = np.random.default_rng(seed)
    attention = random_linear_attention(rng, 4, size)
    q, k = rng.normal(size=(2, length, size))
    s = q @ k.T
    assert np.abs(attention.features(q) @ attention.features(k).T - (1 + s + s**2)).max() < EXACT


def test_divided_by_the_column_of_ones_it_is_the_op():
    """Based's constants, and a channel of u that is 1 and becomes the last value."""
    rng = np.random.default_rng(0)
    length, width, size = 9, 4, 3
    u = np.concatenate([rng.normal(size=(length, width)), np.ones((length, 1))], axis=1)
    queries, keys = (weights(rng, width + 1, size) for _ in range(2))
    values = weights(rng, width + 1, width + 1)
    values[:, -1] = np.eye(width + 1)[-1]
    scale = size**-0.25
    attention = LinearAttention(scale * queries, scale * keys, values, square=math.sqrt(0.5))
    z = linear_attention_by_columns(attention, length)(u)
    q, k, v = ((u @ each)[None, :, None] for each in (queries, keys, values[:, :-1]))
    reference = jax.jit(partial(ops.taylor_attention, eps=0.0, implementation="reference"))
    with jax.enable_x64(True):
        y = np.asarray(reference(q, k, v))
        features = np.asarray(ops.taylor_features(jnp.asarray(q[0, :, 0])))
    assert y.dtype == np.float64
    assert np.abs(features - attention.features(u @ attention.queries)).max() < EXACT
    assert np.abs(z[:, :-1] / z[:, -1:] - y[0, :, 0]).max() < EXACT


def test_wrong_shapes():
    with pytest.raises(ValueError, match=r"keys has shape \(4, 3\): expected \(4, 2\)"):
        LinearAttention(np.zeros((4, 2)), np.zeros((4, 3)), np.zeros((4, 4)))
    with pytest.raises(ValueError, match=r"values has shape \(4, 3\): expected \(4, 4\)"):
        LinearAttention(np.zeros((4, 2)), np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"u has shape \(4, 2\): expected \(N, 3\)"):
        LinearAttention(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 3)))(np.zeros((4, 2)))
