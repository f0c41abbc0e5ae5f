"""Baselines against their authors' recurrent forms in float64: prefill, decoding, states, and AdamW steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.linen import meta

from based_jax.convert import to_torch
from based_jax.convert.layouts import flatten
from based_jax.testing import laws
from tests.mixers.built import runner
from tests.mixers.reference_steps import State, Weights, h3_modes, outputs_and_states
from tests.tolerances import FLOAT32, FLOAT32_GRADIENT, FLOAT32_STATE, assert_close

WIDTH, LENGTH, PREFILL = 8, 11, 6
OPTIONS: dict[str, dict[str, Any]] = {
    "h3": {"d_state": 4},
    "mamba": {"d_state": 3, "dt_rank": 2},
    "retnet": {"num_heads": 2},
    "rwkv4": {},
}
REFERENCES: dict[str, dict[str, Any]] = {
    "h3": {"module": "zoology.mixers.h3.h3.H3", "d_state": 4},
    "mamba": {"module": "zoology.mixers.mamba.Mamba", "d_state": 3, "dt_rank": 2},
    "rwkv4": {"module": "zoology.mixers.rwkv.RWKVTimeMixer", "layer_idx": 0},
}


def their_weights(name: str, variables: Any) -> Weights:
    """Parameters, or gradients, under the names that the steps read."""
    if name in REFERENCES:
        return to_torch({"d_model": WIDTH, **REFERENCES[name]}, jax.device_get(variables))
    return flatten(jax.device_get(meta.unbox(variables))["params"])


def float64(weights: Weights) -> Weights:
    return {name: np.float64(tensor) for name, tensor in weights.items()}


def check_state(name: str, ours: Any, theirs: State, weights: Weights) -> None:
    """Compare all that a reference keeps with ours, in its layout."""
    match name:
        case "h3":
            # Ours are the keys themselves: entry n of theirs is the sum of B_j k_{t-(n-j)}.
            keys = np.asarray(ours.shift.inputs)
            count = keys.shape[1]
            at = (np.asarray(ours.shift.stream.length)[0] - 1 - np.arange(count)) % count
            keys, b = keys[:, at].swapaxes(1, 2), weights["ssm_k_kernel.kernel.B"]
            sums = [(b[:, : n + 1] * keys[..., n::-1]).sum(-1) for n in range(count)]
            modes = np.asarray(ours.ssm.modes)[:, :, 0]
            found = (np.stack(sums, -1), (modes[..., 0] + 1j * modes[..., 1]) * h3_modes(np, weights)[1])
        case "mamba":  # theirs keeps the oldest input too, which no later output sees
            found = (np.asarray(ours.conv.inputs).swapaxes(1, 2), ours.ssm.h)
            theirs = (theirs[0][..., 1:], theirs[1])
        case "retnet":  # theirs scales keys, ours queries
            found = (np.asarray(ours.kv) * ours.kv.shape[2] ** -0.5,)
        case _:
            sums, before = ours.wkv, np.asarray(ours.shift.inputs)[:, 0]
            found = (before, sums.numerator, sums.denominator, sums.exponent)
    for mine, wanted in zip(found, theirs, strict=True):
        for part in (np.real, np.imag) if np.iscomplexobj(wanted) else (np.asarray,):
            assert_close(part(np.asarray(mine)), part(wanted), FLOAT32_STATE)


@pytest.mark.parametrize("name", OPTIONS)
def test_prefill_and_decoding(name):
    """Outputs and states token by token, after a prompt in one call."""
    run = runner(name, d_model=WIDTH, **OPTIONS[name])
    weights = float64(their_weights(name, run.variables))
    x = laws.inputs(2, LENGTH, WIDTH, 0)
    expected, states = outputs_and_states(np, name, weights, np.float64(x))
    y, state = run(x[:, :PREFILL], run.fresh(2))
    assert_close(y, expected[:, :PREFILL], FLOAT32)
    check_state(name, state, states[PREFILL - 1], weights)
    for t in range(PREFILL, LENGTH):
        y, state = run(x[:, t : t + 1], state)
        assert_close(y[:, 0], expected[:, t], FLOAT32)
        check_state(name, state, states[t], weights)


STEPS, RATE, DECAY, BETAS, EPSILON = 3, 0.03, 0.1, (0.9, 0.999), 1e-8


class Training(NamedTuple):
    """Losses before each step and weights after it, and the first gradients."""

    losses: list[float]
    weights: list[Weights]
    gradients: Weights


def their_training(name: str, weights: Weights, x: Any, wanted: Any) -> Training:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) on the steps above, in float64."""

    def loss(weights):
        return jnp.mean((outputs_and_states(jnp, name, weights, x)[0] - wanted) ** 2)

    (of_mean, of_square), result = BETAS, Training([], [], {})
    mean = square = dict.fromkeys(weights, 0.0)
    with jax.enable_x64(True):
        step = jax.jit(jax.value_and_grad(loss))
        for t in range(1, STEPS + 1):
            value, g = jax.device_get(step(weights))
            mean = {key: of_mean * mean[key] + (1 - of_mean) * g[key] for key in g}
            square = {key: of_square * square[key] + (1 - of_square) * g[key] ** 2 for key in g}
            updates = {
                key: mean[key] / (1 - of_mean**t) / (np.sqrt(square[key] / (1 - of_square**t)) + EPSILON)
                for key in g
            }
            weights = {key: w - RATE * (updates[key] + DECAY * w) for key, w in weights.items()}
            result = Training([*result.losses, value], [*result.weights, weights], result.gradients or g)
    return result


@pytest.mark.parametrize("name", ["h3", "retnet"])
def test_training(name):
    """The first gradients, and losses and parameters of AdamW's steps on a regression."""
    run = runner(name, d_model=WIDTH, **OPTIONS[name])
    x, wanted = laws.inputs(2, PREFILL, WIDTH, 1), laws.inputs(2, PREFILL, WIDTH, 2)
    optimizer = optax.adamw(RATE, *BETAS, EPSILON, weight_decay=DECAY)

    @jax.jit
    def step(variables, moments):
        def loss(variables):
            return jnp.mean((run.mixer.apply(variables, x)[0] - wanted) ** 2)

        value, gradients = jax.value_and_grad(loss)(variables)
        updates, moments = optimizer.update(gradients, moments, variables)
        return value, gradients, optax.apply_updates(variables, updates), moments

    variables = run.variables
    weights = float64(their_weights(name, variables))
    theirs = their_training(name, weights, np.float64(x), np.float64(wanted))
    moments = optimizer.init(variables)
    for index in range(STEPS):
        value, gradients, variables, moments = step(variables, moments)
        assert_close(value, theirs.losses[index], FLOAT32)
        if index == 0:
            compare(their_weights(name, gradients), theirs.gradients)
        compare(their_weights(name, variables), theirs.weights[index])


def compare(ours: Weights, theirs: Weights) -> None:
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        assert_close(ours[key], tensor, FLOAT32_GRADIENT, key)
