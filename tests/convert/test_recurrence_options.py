"""Options of Mamba-2, GLA, DeltaNet, Gated DeltaNet, RWKV-7 and Nystrom that no fixture has.

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


def l2(x):
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


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


GATES = {"swish": silu, "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0)}


def gla(meta: dict[str, Any], t: Tensors, x):
    heads = meta["num_heads"]
    kv = meta.get("num_kv_heads", heads)
    q, k, v = (linear(t, f"{name}_proj", x) for name in "qkv")
    if meta.get("use_short_conv", False):
        q, k, v = (silu(conv(a, t[f"{n}_conv1d.weight"])) for n, a in zip("qkv", (q, k, v), strict=True))
    if "feature_map" in meta:
        q, k = (GATES[meta["feature_map"]](a) for a in (q, k))
    logits = linear(t, "gk_proj.1", linear(t, "gk_proj.0", x))
    g = np.maximum(-softplus(-logits) / meta.get("gate_logit_normalizer", 16), meta.get("clamp_min", -np.inf))
    q = q.reshape(len(x), heads, -1)
    k, v, g = (np.repeat(a.reshape(len(x), kv, -1), heads // kv, axis=1) for a in (k, v, g))
    state, y = np.zeros((heads, q.shape[-1], v.shape[-1])), []
    for i in range(len(x)):
        state = np.exp(g[i])[..., None] * state + k[i][..., None] * v[i][:, None]
        y.append(np.einsum("hk,hkv->hv", q[i], state) * q.shape[-1] ** -0.5)
    gated = meta.get("use_output_gate", True)
    fused = gated and meta.get("gate_fn", "swish") == "swish" and meta.get("fuse_norm", True)
    y = rms(np.stack(y)) * t.get("g_norm_swish_gate.weight" if fused else "g_norm.weight", 1.0)
    y = y.reshape(len(x), -1)
    if gated:
        y = y * GATES[meta.get("gate_fn", "swish")](linear(t, "g_proj", x))
    return linear(t, "o_proj", y)


MAPS = {
    "elu": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "silu": silu,
}


def delta(meta: dict[str, Any], t: Tensors, x):
    """Both DeltaNets."""
    heads = meta["num_heads"]
    q, k, v = (conv(linear(t, f"{n}_proj", x), t[f"{n}_conv1d.weight"]) for n in "qkv")
    f = MAPS[meta.get("qk_activation", "silu")]
    q, k, v = (a.reshape(len(x), heads, -1) for a in (f(q), f(k), silu(v)))
    norm = l2 if meta.get("qk_norm", "l2") == "l2" else (lambda a: a / a.sum(-1, keepdims=True))
    q, k = norm(q), norm(k)
    beta = sigmoid(linear(t, "b_proj", x)) if "b_proj.weight" in t else np.ones((len(x), heads))
    beta = beta * (2 if meta.get("allow_neg_eigval", False) else 1)
    g = np.zeros(beta.shape)
    if "A_log" in t:
        g = -np.exp(t["A_log"]) * softplus(linear(t, "a_proj", x) + t["dt_bias"])
    state, y = np.zeros((heads, q.shape[-1], v.shape[-1])), []
    for i in range(len(x)):
        state = np.exp(g[i])[:, None, None] * state
        error = v[i] - np.einsum("hk,hkv->hv", k[i], state)
        state = state + (beta[i][:, None] * k[i])[..., None] * error[:, None]
        y.append(np.einsum("hk,hkv->hv", q[i], state) * q.shape[-1] ** -0.5)
    y = (rms(np.stack(y)) * t["o_norm.weight"]).reshape(len(x), -1)
    return linear(t, "o_proj", y * silu(linear(t, "g_proj", x)) if "g_proj.weight" in t else y)


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
    "zoology.mixers.gla.GatedLinearAttention": gla,
    "zoology.mixers.delta_net.DeltaNet": delta,
    "zoology.mixers.gated_delta_net.GatedDeltaNet": delta,
    "zoology.mixers.nystromformer.NystromAttention": nystrom,
}
MAMBA2, GLA, DELTA, GATED, NYSTROM = FORMS
_SSM = {"d_state": 3, "headdim": 4}

CASES = [
    (MAMBA2, {**_SSM, "d_ssm": 16, "ngroups": 2, "norm_before_gate": True, "bias": True, "D_has_hdim": True}),
    (MAMBA2, {**_SSM, "rmsnorm": False, "conv_bias": False, "dt_limit": [0.5, 0.9]}),
    (
        GLA,
        {"num_heads": 2, "num_kv_heads": 1, "use_short_conv": True, "gate_fn": "sigmoid", "clamp_min": -0.04},
    ),
    (GLA, {"num_heads": 3, "use_output_gate": False, "elementwise_affine": False, "feature_map": "relu"}),
    (DELTA, {"num_heads": 3, "expand_k": 0.5, "expand_v": 2.0, "use_beta": False, "allow_neg_eigval": True}),
    (DELTA, {"num_heads": 2, "qk_activation": "elu", "qk_norm": "sum", "use_gate": True}),
    (GATED, {"num_heads": 5, "expand_v": 3, "use_gate": False}),
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
