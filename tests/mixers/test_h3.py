"""H3 with heads of two channels, which no fixture has: against a loop over tokens."""

import jax
import numpy as np
from flax.linen import meta

from based_jax import mixers
from based_jax.testing import laws
from tests.mixers.built import initial_parameters, runner
from tests.tolerances import FLOAT32, assert_close


def h3_by_hand(mixer, params, x):
    """One row, token by token, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    (length, width), p = x.shape, mixer.head_dim
    heads, taps = width // p, mixer.d_state
    q, k, v = (np.einsum("nd,dhp->nhp", x, params[n]["kernel"]) + params[n]["bias"] for n in "qkv")

    b, c = params["shift_b"], params["shift_c"]
    shift = [(b[:, : taps - lag] * c[:, lag:]).sum(1).reshape(heads, p) for lag in range(taps)]
    skip = params["shift_skip"].reshape(heads, p)
    k = [sum(shift[s] * k[t - s] for s in range(min(t + 1, taps))) + skip * k[t] for t in range(length)]

    a = -np.exp(params["log_rate"]) + 1j * params["frequency"]
    half = np.exp(params["log_dt"])[:, None] * a / 2
    weight = (params["b"][..., 0] + 1j * params["b"][..., 1]) * (
        params["c"][..., 0] + 1j * params["c"][..., 1]
    )
    weight = weight * np.exp(params["log_dt"])[:, None] / (1 - half)
    h, out = np.zeros((heads, p, p, taps // 2), complex), []
    for t in range(length):
        kv = np.einsum("ha,hc->hac", k[t], v[t])
        h = ((1 + half) / (1 - half))[:, None, None] * h + kv[..., None]
        y = 2 * np.einsum("hs,hacs->hac", weight, h).real + params["skip"][:, None, None] * kv
        out.append(np.einsum("ha,hac->ch", q[t], y))  # heads last
    return np.einsum("nch,chd->nd", out, params["out"]["kernel"]) + params["out"]["bias"]


def test_heads_of_two_channels():
    run = runner("h3", d_model=6, d_state=4, head_dim=2)
    x = laws.inputs(2, 19, 6, 0)
    y, _ = run(x)
    params = meta.unbox(run.variables)["params"]
    for row in range(2):
        assert_close(y[row], h3_by_hand(run.mixer, params, x[row]), FLOAT32)


def test_initial_state_spaces():
    """The shift starts as its c alone; rates 1/2, frequencies pi n, steps between dt_min and dt_max."""
    params = initial_parameters("h3", d_model=64, d_state=6)
    assert np.array_equal(params["shift_b"], np.eye(1, 6).repeat(64, axis=0))
    assert np.abs(params["shift_c"]).max() <= 6**-0.5
    np.testing.assert_allclose(np.exp(params["log_rate"]), 0.5, rtol=1e-6)
    np.testing.assert_allclose(params["frequency"][3], np.pi * np.arange(3), rtol=1e-6)
    steps = np.exp(params["log_dt"])
    assert 1e-3 <= steps.min() < 3e-3
    assert 3e-2 < steps.max() <= 0.1
    assert np.array_equal(params["b"][0], [[1, 0]] * 3)


def test_the_state_has_a_fixed_size():
    mixer = mixers.make("h3", d_model=8, d_state=6)
    short, long = (jax.eval_shape(lambda n=n: mixer.init_state(2, n)) for n in (10, 100_000))
    assert short == long
    assert short.ssm.modes.size == 2 * mixer.state_size(10)  # two rows
