"""H3 with heads of two channels and other state spaces, which no fixture has: against a loop over tokens."""

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
    if mixer.kernel == "shift":
        kernel = shift_by_hand(params["b"], params["c"])
        kernel = np.concatenate([kernel, np.zeros((length, kernel.shape[1]))])[:length]
    elif mixer.kernel == "ema":
        p = sigmoid(params["ema_step"])
        q = 1 - p * sigmoid(params["ema_decay"])
        weight = p * params["ema_in"] * params["ema_out"] / np.sqrt(mixer.d_state)
        kernel = (weight * q**lags).sum(-1)
    else:
        pairs = {name: params[name][..., 0] + 1j * params[name][..., 1] for name in "bc"}
        rate = FORMS[mixer.rate_form](params["log_rate"])
        a = -rate + 1j * params["frequency"] * (not mixer.real)
        copies = mixer.heads // len(a)
        a, b, dt = (
            np.tile(a, (copies, 1)),
            np.tile(pairs["b"], (copies, 1)),
            np.exp(params["log_dt"])[:, None],
        )
        c = pairs["c"] * (dt * np.abs(a.imag) / (2 * np.pi) < (mixer.bandlimit or np.inf) / 2)
        if mixer.discretization == "zoh":
            weight, a = c * b * (np.exp(dt * a) - 1) / a, np.exp(dt * a)
        else:
            weight, a = c * b * dt / (1 - dt * a / 2), (1 + dt * a / 2) / (1 - dt * a / 2)
        kernel = 2 * (weight * a**lags).sum(-1).real
    ends = mixer.l_max or length, mixer.kernel_l_max or length
    return np.where(lags[:, 0] < min(ends), kernel, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FORMS = {
    "exp": np.exp,
    "none": lambda r: r,
    "relu": lambda r: np.maximum(r, 0) + 1e-4,
    "sigmoid": sigmoid,
    "softplus": lambda r: np.log1p(np.exp(r)),
}


@pytest.mark.parametrize(
    "options",
    [
        {"d_state": 4},
        {"d_state": 6, "kernel": "ema", "tied_steps": True, "kernel_l_max": 5},
        {"d_state": 6, "discretization": "zoh", "rate_form": "softplus", "num_ssms": 1, "l_max": 7},
        *(
            pytest.param(options, marks=pytest.mark.release)
            for options in (
                {"d_state": 6, "kernel": "ema", "l_max": 5},
                {"d_state": 6, "l_max": 8, "kernel_l_max": 3},
                {"d_state": 6, "kernel": "shift"},
                {"d_state": 6, "kernel": "shift", "l_max": 4},
                {"d_state": 8, "bandlimit": 0.02, "rate_form": "sigmoid"},
                {"d_state": 4, "real": True, "rate_form": "relu", "discretization": "zoh"},
                {"d_state": 5, "rate_form": "none"},
            )
        ),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
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
