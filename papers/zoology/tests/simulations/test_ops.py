"""The simulated layers are what the library's ops compute."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from papers.check import EXACT
from papers.zoology.base_conv import convolve
from papers.zoology.simulations.h3 import h3_by_columns
from papers.zoology.simulations.instances import random_h3, random_retnet, weights
from papers.zoology.simulations.linear_attention import LinearAttention, linear_attention_by_columns
from papers.zoology.simulations.retnet import retnet_by_columns
from papers.zoology.simulations.rwkv import RWKV, decay_filters, rwkv_by_columns


def test_h3_the_diagonal_filter_is_the_op():
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


def test_linear_attention_divided_by_the_column_of_ones_it_is_the_op():
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


def test_retnet_the_recurrence_is_the_op():
    rng = np.random.default_rng(2)
    retnet, u = random_retnet(rng, 3), rng.normal(size=(8, 3))
    q, k, v = ((u @ each)[None, :, None] for each in (retnet.queries, retnet.keys, retnet.values))
    recurrence = jax.jit(partial(ops.linear_recurrence, scale=1.0, implementation="reference"))
    with jax.enable_x64(True):
        y = np.asarray(recurrence(q, k, v, np.full((1, 1, 1), np.log(retnet.decay))))
    assert y.dtype == np.float64
    assert np.abs(retnet_by_columns(retnet, 8)(u) - y[0, :, 0]).max() < EXACT


def test_rwkv_after_the_division_it_is_the_op():
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
