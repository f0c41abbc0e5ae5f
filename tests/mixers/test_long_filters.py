"""The filters of long convolutions: features of a position, and the decay of sine filters."""

import jax
import numpy as np
from flax.linen import meta

from based_jax.mixers.long_filters import SineFilter, position_features


def test_positions_are_time_and_waves():
    z = position_features(8, 5)
    assert z.shape == (8, 5)
    np.testing.assert_allclose(z[:, 0], np.arange(8) / 7)
    angle = np.array([1e-4, 1.0]) * 2 * np.pi * np.arange(8)[:, None] / 8
    np.testing.assert_allclose(z[:, 1:], np.concatenate([np.cos(angle), -np.sin(angle)], axis=1))
    assert position_features(1, 1).tolist() == [[0.0]]


def test_the_fixed_decay_reaches_a_hundredth():
    """At `slow` and `fast` of the length, for the first and the last channel."""
    module = SineFilter(3, l_max=101, order=4, fast=0.25, slow=0.5, sine_frequency=14.0)
    params = meta.unbox(jax.jit(module.init, static_argnums=1)(jax.random.key(0), 2))["params"]
    assert np.all(params["frequency"] == 14)
    # With weights of zero a bias of the hidden layers makes the filter constant, but for the decay.
    params = jax.tree.map(np.zeros_like, jax.device_get(params))
    params["inner_1"]["bias"] += 1
    params["frequency"] += 1
    params["out"]["kernel"] += 1
    h = np.asarray(jax.jit(module.apply, static_argnums=1)({"params": params}, 101))
    np.testing.assert_allclose(h[50, 0] / h[0, 0], 0.01, rtol=1e-4)
    np.testing.assert_allclose(h[25, 2] / h[0, 2], 0.01, rtol=1e-4)
