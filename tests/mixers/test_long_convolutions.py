"""BaseConv, LongConv and Hyena: filters, limits, and the forms that no fixture holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers
from based_jax.mixers.long_filters import SineFilter, position_features
from tests.mixers import laws
from tests.tolerances import FLOAT32, assert_close


def run(name, width=4, **options):
    return laws.Runner(mixers.make(name, d_model=width, **options))


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


@pytest.mark.parametrize("name", ["base_conv", "long_conv"])
def test_a_filter_longer_than_the_text_gives_its_first_taps(name):
    options = {"kernel_size": -1} if name == "base_conv" else {}
    long, short = (run(name, l_max=length, implicit=False, **options) for length in (40, 6))
    long.variables = meta.unbox(long.variables)
    taps = long.variables["params"]["filter"]["taps"]
    short.variables = {"params": long.variables["params"] | {"filter": {"taps": taps[:6]}}}
    x = laws.inputs(2, 6, 4, 0)
    assert_close(long(x)[0], short(x)[0], FLOAT32)


def test_implicit_filters_are_mlps_and_their_positions_stay():
    convolution = run("long_conv", l_max=9, implicit=True)
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


def hyena_by_hand(mixer, params, x):
    """One row, token by token and head by head, in float64; order 2 with heads, or order n without."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    length, width = x.shape
    p, parts = mixer.head_dim, mixer.order + 1
    heads = width // p
    inner = np.einsum("nd,dpe->npe", x, params["in_proj"]["kernel"]) + params["in_proj"]["bias"]
    inner = inner.reshape(length, -1)
    taps = params["conv_kernel"]
    padded = np.concatenate([np.zeros((len(taps) - 1, inner.shape[1])), inner])
    short = [(taps * padded[t : t + len(taps)]).sum(0) + params["conv_bias"] for t in range(length)]
    *gates, v = np.moveaxis(np.reshape(short, (length, parts, heads, p)), 1, 0)

    f, w = params["filter"], params["filter"]["frequency"]
    h = np.sin(w * (f["embedding"] @ f["in_proj"]["kernel"] + f["in_proj"]["bias"]))
    for layer in range(mixer.num_inner_mlps):
        h = np.sin(w * (h @ f[f"inner_{layer}"]["kernel"] + f[f"inner_{layer}"]["bias"]))
    channels = heads * (mixer.order - 1)
    decay = np.log(0.01) / np.array([mixer.slow_decay, mixer.fast_decay])
    time = np.linspace(0, 1, mixer.l_max)[:, None]
    h = h @ f["out"]["kernel"] * np.exp(time * np.linspace(*decay, channels))
    filters, skips = np.split(h, mixer.order - 1, axis=1), np.split(params["skip"], mixer.order - 1)
    for gate, h, skip, following in zip(gates, filters, skips, gates[1:], strict=False):
        product = np.einsum("nha,nhb->nhab", gate, v)
        convolved = [
            sum(h[s][:, None, None] * product[t - s] for s in range(t + 1)) + skip[:, None, None] * product[t]
            for t in range(length)
        ]
        last = following is gates[-1]
        v = np.einsum("nha,nhab->nhb", following if last else np.ones_like(following), np.array(convolved))
    return v.reshape(length, width) @ params["out"]["kernel"] + params["out"]["bias"]


@pytest.mark.parametrize("options", [{"num_heads": 2}, {"order": 3}], ids=str)
def test_hyena_with_heads_and_of_higher_order(options):
    hyena = run("hyena", l_max=20, filter_order=5, emb_dim=5, **options)
    x = laws.inputs(1, 9, 4, 2)
    y, _ = hyena(x)
    params = meta.unbox(hyena.variables)["params"]
    assert_close(y[0], hyena_by_hand(hyena.mixer, params, x[0]), FLOAT32)
    laws.split_law(hyena, x, [1, 4, 4])
    assert hyena.mixer.state_size(16) == 2 * 4 * 16  # p = 2, or two convolutions


def test_hyena_ends_at_l_max():
    hyena = run("hyena", l_max=8, filter_order=5)
    x = laws.inputs(2, 9, 4, 3)
    with pytest.raises(
        ValueError, match="length = 9: expected at most l_max = 8 tokens, the length of the fil"
    ):
        hyena.mixer.apply(hyena.variables, x)
    _, state = hyena(x[:, :6], hyena.fresh(2), mask=np.arange(6) < np.array([[6], [3]]))
    with pytest.raises(ValueError, match="length = 9: expected at most l_max = 8 tokens"):
        hyena.mixer.apply(hyena.variables, x[:, :3], state)
    y, state = hyena(x[:, :3], state)  # under jit no error is possible: NaN where the row is too long
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()
    assert state.long[0].inputs.shape == (2, 8, 4)


def test_a_state_shorter_than_the_filter():
    """It holds max_length inputs; a filter of that many taps needs no more, however long the text is."""
    x = laws.inputs(1, 3, 4, 4)
    for taps, fits in ((9, False), (4, True)):
        convolution = run("long_conv", l_max=taps)
        state = convolution.mixer.init_state(1, 4)
        assert state.inputs.shape == (1, 4, 4)
        _, state = convolution(x, state)
        y, _ = convolution(x, state)
        assert np.isfinite(y).all() == fits


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mixers.make("base_conv", d_model=4, kernel_size=0).init_state(1),
            "kernel_size = 0: expected",
        ),
        (
            lambda: mixers.make("base_conv", d_model=4, l_max=0).init_state(1),
            "l_max = 0: expected at least 1",
        ),
        (lambda: initialised("long_conv", l_max=0), "l_max = 0: expected at least 1"),
        (lambda: initialised("hyena", emb_dim=4), "emb_dim = 4: expected an odd number"),
        (lambda: initialised("hyena", order=1), "order = 1: expected at least 2"),
        (lambda: initialised("hyena", num_heads=3), "d_model = 4: expected a multiple of num_heads = 3"),
        (lambda: initialised("hyena", num_heads=2, order=3), "order = 3: expected 2 with several heads"),
        (lambda: initialised("h3", d_state=5), "d_state = 5: expected even"),
        (lambda: initialised("h3", head_dim=3), "d_model = 4: expected a multiple of head_dim = 3"),
        (lambda: initialised("blocked_window", width=0), "width = 0: expected at least 1"),
    ],
)
def test_bad_options_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def initialised(name, **options):
    mixer = mixers.make(name, d_model=4, **options)
    return jax.eval_shape(mixer.init, jax.random.key(0), jnp.zeros((1, 2, 4)))
