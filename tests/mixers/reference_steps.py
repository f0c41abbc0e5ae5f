"""One token through the authors' own recurrent forms, in NumPy's or jax.numpy's float64.

`step(xp, weights, position, x, state)` returns the output of the token x, (B, D), and the next state. Weights
are tensors under the reference's names; RetNet has no converter, and its weights our names.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Weights = dict[str, Any]
State = tuple[Any, ...]
GROUP_NORM = 1e-5


def sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


def linear(weights: Weights, name: str, x: Any) -> Any:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def mamba(xp: Any, w: Weights, position: int, x: Any, state: State) -> tuple[Any, State]:
    """`Mamba.step` of mamba_ssm/modules/mamba_simple.py; the window (B, E, taps), the states (B, E, S)."""
    window, h = state
    u, z = xp.split(linear(w, "in_proj", x), 2, axis=-1)
    window = xp.concatenate([window[..., 1:], u[..., None]], axis=-1)
    u = (window * w["conv1d.weight"][:, 0]).sum(-1) + w["conv1d.bias"]
    u = u * sigmoid(xp, u)
    states = h.shape[-1]
    rank = len(w["x_proj.weight"]) - 2 * states
    low, b, c = xp.split(linear(w, "x_proj", u), [rank, rank + states], axis=-1)
    dt = xp.log1p(xp.exp(linear(w, "dt_proj", low)))
    h = xp.exp(-dt[..., None] * xp.exp(w["A_log"])) * h + dt[..., None] * b[:, None] * u[..., None]
    y = ((h * c[:, None]).sum(-1) + w["D"] * u) * z * sigmoid(xp, z)
    return linear(w, "out_proj", y), (window, h)


def h3(xp: Any, w: Weights, position: int, x: Any, state: State) -> tuple[Any, State]:
    """`H3.step` of zoology/mixers/h3, heads of one channel; the shift (B, D, S), the modes (B, D, S/2)."""
    shift, modes = state
    q, k, v = (linear(w, f"{name}_proj", x) for name in "qkv")
    moved = xp.concatenate([xp.zeros_like(shift[..., :1]), shift[..., :-1]], axis=-1)
    shift = moved + w["ssm_k_kernel.kernel.B"] * k[..., None]
    k = (w["ssm_k_kernel.kernel.C"][0] * shift).sum(-1) + w["ssm_k_D"] * k
    rate, entry = h3_modes(xp, w)
    modes = rate * modes + entry * (k * v)[..., None]
    c = w["kernel.kernel.C"][0, ..., 0] + 1j * w["kernel.kernel.C"][0, ..., 1]
    y = 2 * (c * modes).sum(-1).real + w["D"] * k * v
    return linear(w, "output_linear", q * y), (shift, modes)


def h3_modes(xp: Any, w: Weights) -> tuple[Any, Any]:
    """The discrete A and B of `SSKernelDiag._setup_step`, bilinear."""
    dt = xp.exp(w["kernel.kernel.log_dt"])[:, None]
    b = w["kernel.kernel.B"][..., 0] + 1j * w["kernel.kernel.B"][..., 1]
    a = dt * (-xp.exp(w["kernel.kernel.inv_A_real"]) + 1j * w["kernel.kernel.A_imag"])
    return (1 + a / 2) / (1 - a / 2), b * dt / (1 - a / 2)


def retnet(xp: Any, w: Weights, position: int, x: Any, state: State) -> tuple[Any, State]:
    """Sun et al. 2023, equations 6 and 8, and xPos' turns (equation 4); the state (B, H, K, V)."""
    (s,) = state
    q, k, v, gate = (xp.einsum("bd,dhk->bhk", x, w[f"{name}/kernel"]) for name in ("q", "k", "v", "gate"))
    heads, size = q.shape[1:]
    angle = position * 10000.0 ** (-np.arange(0, size, 2) / size)
    q, k = (turned(xp, a, angle) for a in (q, k))
    gamma = 1 - 2.0 ** (-5 - np.arange(heads))
    s = gamma[:, None, None] * s + k[..., None] * size**-0.5 * v[:, :, None]
    y = xp.einsum("bhk,bhkv->bhv", q, s)
    y = (y - y.mean(-1, keepdims=True)) / xp.sqrt(y.var(-1, keepdims=True) + GROUP_NORM)
    y = (y * w["norm_scale"] + w["norm_bias"]) * gate * sigmoid(xp, gate)
    return xp.einsum("bhv,hvd->bd", y, w["out/kernel"]), (s,)


def turned(xp: Any, a: Any, angle: Any) -> Any:
    """Each pair of neighbouring channels as a complex number, times e^(i angle)."""
    even, odd, cos, sin = a[..., ::2], a[..., 1::2], np.cos(angle), np.sin(angle)
    return xp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(a.shape)


def rwkv4(xp: Any, w: Weights, position: int, x: Any, state: State) -> tuple[Any, State]:
    """The loop of zoology/mixers/rwkv/v4/wkv_cuda.cu; the token before, two sums (B, D) over e^exponent."""
    before, numerator, denominator, exponent = state

    def blend(name: str) -> Any:
        mix = w[f"time_mix_{name}"][0, 0]
        return x * mix + before * (1 - mix)

    k, v, r = (
        linear(w, "key", blend("k")),
        linear(w, "value", blend("v")),
        linear(w, "receptance", blend("r")),
    )
    top = xp.maximum(exponent, w["time_first"] + k)
    old, new = xp.exp(exponent - top), xp.exp(w["time_first"] + k - top)
    wkv = (old * numerator + new * v) / (old * denominator + new)
    decayed = exponent - xp.exp(w["time_decay"])
    top = xp.maximum(decayed, k)
    old, new = xp.exp(decayed - top), xp.exp(k - top)
    state = (x, old * numerator + new * v, old * denominator + new, top)
    return linear(w, "output", sigmoid(xp, r) * wkv), state


class Recurrence(NamedTuple):
    """A reference's step."""

    step: Callable[..., tuple[Any, State]]
    empty: Callable[[int, Weights], State]
    """the state before the first token, of so many rows"""


def _empty_mamba(rows: int, w: Weights) -> State:
    (channels, _, taps), states = w["conv1d.weight"].shape, w["A_log"].shape[1]
    return np.zeros((rows, channels, taps)), np.zeros((rows, channels, states))


def _empty_h3(rows: int, w: Weights) -> State:
    modes = w["kernel.kernel.C"].shape[1:-1]
    return np.zeros((rows, *w["ssm_k_kernel.kernel.B"].shape)), np.zeros((rows, *modes), complex)


def _empty_retnet(rows: int, w: Weights) -> State:
    (_, heads, keys), values = w["k/kernel"].shape, w["v/kernel"].shape[2]
    return (np.zeros((rows, heads, keys, values)),)


def _empty_rwkv4(rows: int, w: Weights) -> State:
    zeros = np.zeros((rows, len(w["time_decay"])))
    return zeros, zeros, zeros, zeros - 1e38


RECURRENCES = {
    "h3": Recurrence(h3, _empty_h3),
    "mamba": Recurrence(mamba, _empty_mamba),
    "retnet": Recurrence(retnet, _empty_retnet),
    "rwkv4": Recurrence(rwkv4, _empty_rwkv4),
}
"""By the name of our mixer."""


def outputs_and_states(xp: Any, name: str, weights: Weights, x: Any) -> tuple[Any, list[State]]:
    """Outputs (B, N, D), and the state after each token."""
    recurrence = RECURRENCES[name]
    state, outputs, states = recurrence.empty(len(x), weights), [], []
    for position in range(x.shape[1]):
        y, state = recurrence.step(xp, weights, position, x[:, position], state)
        outputs.append(y)
        states.append(state)
    return xp.stack(outputs, axis=1), states
