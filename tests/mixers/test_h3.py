"""H3 with heads of two channels, which no fixture has: against a loop over tokens."""

import jax
import numpy as np
import pytest
from flax.linen import meta

from based_jax.testing import laws
from tests.mixers.built import runner
from tests.tolerances import FLOAT32, assert_close


def h3_by_hand(mixer, params, x):
    """One row, token by token, in float64."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    (length, width), p = x.shape, mixer.head_dim
    heads = width // p
    q, k, v = (np.einsum("nd,dhp->nhp", x, params[n]["kernel"]) + params[n]["bias"] for n in "qkv")

    shift = shift_by_hand(params["shift_b"], params["shift_c"])[: mixer.l_max].reshape(-1, heads, p)
    skip = params["shift_skip"].reshape(heads, p)
    k = [sum(s * k[t - lag] for lag, s in enumerate(shift) if lag <= t) + skip * k[t] for t in range(length)]
    kv = np.einsum("nha,nhc->nhac", k, v)
    kernel = kernel_by_hand(mixer, params, length)
    y = [sum(kernel[lag][:, None, None] * kv[t - lag] for lag in range(t + 1)) for t in range(length)]
    y = np.stack(y) + params["skip"][:, None, None] * kv
    return np.einsum("nha,nhac,chd->nd", q, y, params["out"]["kernel"]) + params["out"]["bias"]


def shift_by_hand(b, c):
    """Taps (S, channels): the correlation of b with c."""
    count = b.shape[1]
    return np.stack([(b[:, : count - lag] * c[:, lag:]).sum(1) for lag in range(count)])


def kernel_by_hand(mixer, params, length):
    """(N, H), in the words of Zoology's code."""
    lags = np.arange(length)[:, None, None]
    if mixer.kernel == "ema":
        p = sigmoid(params["ema_step"])
        q = 1 - p * sigmoid(params["ema_decay"])
        weight = p * params["ema_in"] * params["ema_out"] / np.sqrt(mixer.d_state)
        kernel = (weight * q**lags).sum(-1)
    else:
        b, c = (params[name][..., 0] + 1j * params[name][..., 1] for name in "bc")
        a, dt = -np.exp(params["log_rate"]) + 1j * params["frequency"], np.exp(params["log_dt"])[:, None]
        weight, a = c * b * dt / (1 - dt * a / 2), (1 + dt * a / 2) / (1 - dt * a / 2)
        kernel = 2 * (weight * a**lags).sum(-1).real
    ends = mixer.l_max or length, mixer.kernel_l_max or length
    return np.where(lags[:, 0] < min(ends), kernel, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


OPTIONS = [
    {"d_state": 5},
    {"d_state": 6, "kernel": "ema", "kernel_l_max": 5},
    pytest.param({"d_state": 6, "kernel": "ema", "l_max": 5}, marks=pytest.mark.release),
    pytest.param({"d_state": 6, "l_max": 8, "kernel_l_max": 3}, marks=pytest.mark.release),
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_heads_of_two_channels(options):
    """Whole rows, and in two calls with a state between them."""
    run = runner("h3", d_model=6, head_dim=2, **options)
    x = laws.inputs(2, 19, 6, 0)
    y, _ = run(x)
    params = meta.unbox(run.variables)["params"]
    expected = np.stack([h3_by_hand(run.mixer, params, row) for row in x])
    assert_close(y, expected, FLOAT32)
    first, state = run(x[:, :11], run.fresh(2))
    assert_close(np.concatenate([first, run(x[:, 11:], state)[0]], axis=1), expected, FLOAT32)
