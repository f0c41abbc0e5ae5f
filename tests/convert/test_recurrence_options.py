"""Options of Mamba-2 and Nystrom that neither a fixture nor fla has (test_fla.py has the others).

The classes' forward passes in NumPy and float64, token by token, from a torch state dict: the layout of each
option is compared too. Weights are random.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from based_jax import mixers
from based_jax.convert import from_torch, to_torch
from based_jax.convert.references.table import MIXERS
from tests.arrays import array, normals
from tests.tolerances import FLOAT32, assert_close

WIDTH, LENGTH = 12, 9
Tensors = dict[str, np.ndarray]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.log1p(np.exp(x))


def rms(x, eps=1e-5):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def conv(x, weight, bias=0.0):
    """A causal depthwise convolution; torch's layout of its taps, the newest last."""
    taps = weight.shape[-1]
    padded = np.pad(x, ((taps - 1, 0), (0, 0)))
    return sum(padded[i : i + len(x)] * weight[:, 0, i] for i in range(taps)) + bias


def linear(tensors: Tensors, name: str, x):
    return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)


def mamba2(meta: dict[str, Any], t: Tensors, x):
    states, groups, p = meta["d_state"], meta.get("ngroups", 1), meta["headdim"]
    inner = 2 * WIDTH
    ssm = meta.get("d_ssm", inner)
    heads, beside = ssm // p, inner - ssm
    sizes = np.cumsum([beside, beside, ssm, ssm + 2 * groups * states])
    z0, x0, z, u, dt = np.split(linear(t, "in_proj", x), sizes, axis=-1)
    u = silu(conv(u, t["conv1d.weight"], t.get("conv1d.bias", 0.0)))
    u, b, c = np.split(u, [ssm, ssm + groups * states], axis=-1)
    u = u.reshape(-1, heads, p)
    b, c = (np.repeat(a.reshape(-1, groups, states), heads // groups, axis=1) for a in (b, c))
    dt = np.clip(softplus(dt + t["dt_bias"]), *meta.get("dt_limit", (0, np.inf)))
    state, y = np.zeros((heads, p, states)), []
    for i in range(len(x)):
        decay = np.exp(-dt[i] * np.exp(t["A_log"]))[:, None, None]
        state = decay * state + (dt[i][:, None] * u[i])[:, :, None] * b[i][:, None]
        y.append((state * c[i][:, None]).sum(-1))
    y = np.stack(y) + u * t["D"].reshape(heads, -1)
    y, gate = y.reshape(len(x), -1), silu(z)
    if not meta.get("rmsnorm", True):
        y = y * gate
    else:
        before = meta.get("norm_before_gate", False)
        y = y if before else y * gate
        y = rms(y.reshape(len(x), groups, -1)).reshape(y.shape) * t["norm.weight"]
        y = y * gate if before else y
    return linear(t, "out_proj", np.concatenate([silu(z0) * x0, y], axis=-1))


def nystrom(meta: dict[str, Any], t: Tensors, x):
    """The masked products through landmarks, for lengths that they divide."""
    count = meta["num_landmarks"]
    q, k, v = np.split(linear(t, "Wqkv", x), 3, axis=-1)
    q = q * WIDTH**-0.5
    q_mean, k_mean = (a.reshape(count, -1, WIDTH).mean(1) for a in (q, k))

    def lower(q, k):
        scores = np.where(np.tri(len(q), len(k), dtype=bool), q @ k.T, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    y = lower(q, k_mean) @ np.linalg.pinv(lower(q_mean, k_mean)) @ (lower(q_mean, k) @ v)
    taps = t["skip_connection.weight"][0, 0, :, 0]
    padded = np.pad(v, ((len(taps) // 2,) * 2, (0, 0)))
    y = y + sum(tap * padded[i : i + len(v)] for i, tap in enumerate(taps))
    return linear(t, "out_proj", y)


FORMS: dict[str, Callable[..., np.ndarray]] = {
    "zoology.mixers.mamba2.Mamba2": mamba2,
    "zoology.mixers.nystromformer.NystromAttention": nystrom,
}
MAMBA2, NYSTROM = FORMS
_SSM = {"d_state": 3, "headdim": 4}

CASES = [
    (MAMBA2, {**_SSM, "d_ssm": 16, "ngroups": 2, "norm_before_gate": True, "bias": True, "D_has_hdim": True}),
    (MAMBA2, {**_SSM, "rmsnorm": False, "conv_bias": False, "dt_limit": [0.5, 0.9]}),
    (NYSTROM, {"num_landmarks": 3, "num_heads": 1, "use_razavi_pinverse": False, "conv_kernel_size": 3}),
]


@pytest.mark.parametrize(("path", "given"), CASES, ids=lambda case: str(case)[-40:])
def test_options_are_the_authors(path, given):
    meta = {"module": path, "d_model": WIDTH, **given}
    spec = MIXERS[path].spec(meta)
    module = mixers.make(spec.mixer, d_model=WIDTH, **spec.options)
    x = np.random.default_rng(0).normal(size=(1, LENGTH, WIDTH)).astype(np.float32)
    params = normals(module.init, array(x))
    tensors = to_torch(meta, params)
    same, again = from_torch(meta, tensors)
    assert same == module
    y, _ = jax.jit(module.apply)(again, x)
    expected = FORMS[path](meta, {key: np.float64(value) for key, value in tensors.items()}, np.float64(x[0]))
    assert_close(y[0], expected, FLOAT32)
