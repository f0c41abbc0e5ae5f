"""The filters of long convolutions: features of a position, and the decay of sine filters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax.mixers.long_filters import SineFilter, position_features
from based_jax.testing import laws
from tests.arrays import normals
from tests.mixers.built import runner
from tests.tolerances import FLOAT32, assert_close


def test_positions_are_time_and_waves():
    z = position_features(8, 5)
    assert z.shape == (8, 5)
    np.testing.assert_allclose(z[:, 0], np.arange(8) / 7)
    angle = np.array([1e-4, 1.0]) * 2 * np.pi * np.arange(8)[:, None] / 8
    np.testing.assert_allclose(z[:, 1:], np.concatenate([np.cos(angle), -np.sin(angle)], axis=1))
    assert position_features(1, 1).tolist() == [[0.0]]


def test_the_fixed_decay_reaches_a_hundredth():
    """At `slow` and `fast` of the length, for the first and the last channel."""
    module = SineFilter(3, l_max=101, filter_order=4, fast_decay=0.25, slow_decay=0.5, sine_frequency=14.0)
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


def test_sine_filters_are_the_formula():
    """In float64."""
    module = SineFilter(3, l_max=9, emb_dim=5, filter_order=4, num_inner_mlps=1, fast_decay=0.2)
    params = meta.unbox(normals(functools.partial(module.init, taps=2)))["params"]
    taps = jax.jit(module.apply, static_argnums=1)({"params": params}, 7)

    params = jax.tree.map(np.float64, jax.device_get(params))
    hidden = params["embedding"][:7]
    for name in ("in_proj", "inner_0"):
        layer = params[name]
        hidden = np.sin(params["frequency"] * (hidden @ layer["kernel"] + layer["bias"]))
    decays = np.linspace(np.log(0.01) / 1.5, np.log(0.01) / 0.2, 3)
    h = hidden @ params["out"]["kernel"] * np.exp(np.linspace(0, 1, 9)[:7, None] * decays)
    assert_close(taps, h, FLOAT32)


def test_positions_may_be_frozen():
    module = SineFilter(2, l_max=3, filter_order=2, learned_positions=False)
    params = meta.unbox(normals(functools.partial(module.init, taps=2)))
    gradients = jax.grad(lambda params: jnp.sum(module.apply(params, 3)))(params)["params"]
    assert not np.any(gradients["embedding"])
    assert np.any(gradients["out"]["kernel"])


@pytest.mark.parametrize("name", ["base_conv", "long_conv"])
def test_mixers_with_hyenas_filter(name):
    """The papers' language models have it in BaseConv (Zoology, Table 9)."""
    options = {"l_max": 5, "implicit": True, "sine_frequency": 14.0, "filter_order": 4, "slow_decay": 1.2}
    options |= {"kernel_size": -1} if name == "base_conv" else {}
    run = runner(name, d_model=2, **options)
    params = meta.unbox(run.variables)["params"]
    h = np.asarray(SineFilter(2, 5, filter_order=4, slow_decay=1.2).apply({"params": params["filter"]}, 5))
    x = laws.inputs(1, 8, 2, 0)
    conv = [sum(h[lag] * x[:, t - lag] for lag in range(min(t + 1, 5))) + x[:, t] for t in range(8)]
    conv = np.stack(conv, axis=1)
    gate = params["projection"] if name == "base_conv" else None
    expected = conv if gate is None else conv * (x @ gate["kernel"] + gate["bias"]) + x
    assert_close(run(x)[0], expected, FLOAT32)


def test_an_explicit_filter_has_no_sines():
    with pytest.raises(ValueError, match=r"sine_frequency = 1\.0: expected None for an explicit filter"):
        runner("long_conv", d_model=2, sine_frequency=1.0)


@pytest.mark.parametrize(("name", "options"), [("long_conv", {}), ("base_conv", {"kernel_size": -1})])
def test_a_filter_longer_than_the_text_gives_its_first_taps(name, options):
    long, short = (runner(name, d_model=4, l_max=taps, implicit=False, **options) for taps in (40, 6))
    params = meta.unbox(long.variables)["params"]
    short.variables = {"params": params | {"filter": {"taps": params["filter"]["taps"][:6]}}}
    x = laws.inputs(2, 6, 4, 0)
    assert_close(long(x)[0], short(x)[0], FLOAT32)


def test_implicit_filters_are_mlps_and_their_positions_stay():
    convolution = runner("long_conv", d_model=4, l_max=9, implicit=True)
    params = jax.tree.map(np.asarray, meta.unbox(convolution.variables))["params"]["filter"]
    hidden = np.maximum(params["embedding"] @ params["in_proj"]["kernel"] + params["in_proj"]["bias"], 0)
    taps = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    x = laws.inputs(1, 7, 4, 1)
    expected = x[0] + [sum(taps[s] * x[0, t - s] for s in range(t + 1)) for t in range(7)]
    assert_close(convolution(x)[0][0], expected, FLOAT32)

    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(convolution.mixer.apply(variables, x)[0] ** 2)))
    of_filter = meta.unbox(gradient(convolution.variables))["params"]["filter"]
    assert not np.any(of_filter["embedding"])
    assert np.any(of_filter["in_proj"]["kernel"])


def test_a_state_shorter_than_the_filter():
    """It holds max_length inputs; a filter of that many taps needs no more, however long the text is."""
    x = laws.inputs(1, 3, 4, 4)
    for taps, fits in ((9, False), (4, True)):
        convolution = runner("long_conv", d_model=4, l_max=taps)
        state = convolution.mixer.init_state(1, 4)
        assert state.inputs.shape == (1, 4, 4)
        _, state = convolution(x, state)
        y, _ = convolution(x, state)
        assert np.isfinite(y).all() == fits
