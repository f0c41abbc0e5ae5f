"""Mixers of a recurrence: DeltaNet, Gated DeltaNet, and Liquid S4 against a token loop in float64."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.convert import from_torch, to_torch
from tests.arrays import normals
from tests.mixers.built import gradients
from tests.tolerances import FLOAT64, assert_close


def test_keys_that_sum_to_one_may_be_empty():
    """A relu can leave a token without any key: no 0 / 0."""
    mixer = mixers.make("delta_net", d_model=4, qk_norm="sum", qk_activation="relu")
    chex.assert_tree_all_finite(gradients(mixer, np.zeros((1, 3, 4), np.float32)))


def test_the_unused_parameter():
    """Dropped on the way here, zeros on the way back; required, as torch's strict loading would."""
    meta = {"module": "zoology.mixers.gated_delta_net.GatedDeltaNet", "d_model": 8, "num_heads": 2}
    module = mixers.make("gated_delta_net", d_model=8, num_heads=2)
    params = normals(module.init, jnp.zeros((1, 3, 8)))
    tensors = to_torch(meta, jax.device_get(params))
    assert not np.any(tensors["D"])
    same, back = from_torch(meta, tensors | {"D": np.ones(2, np.float32)})
    assert same == module
    assert jax.tree.all(
        jax.tree.map(np.array_equal, dict(back), jax.tree.map(np.asarray, nn.meta.unbox(params)))
    )
    with pytest.raises(ValueError, match="D"):
        from_torch(meta, {name: x for name, x in tensors.items() if name != "D"})


def oracle(tree: dict, x: np.ndarray) -> np.ndarray:
    """The pre-activation of the output map, one row."""
    tree = {name: np.asarray(leaf, np.float64) for name, leaf in tree.items() if name != "out"}
    B, C = (tree[name][..., 0] + 1j * tree[name][..., 1] for name in "BC")
    half = (-np.exp(tree["A_log"]) + 1j * tree["A_imag"]) * np.exp(tree["dt_log"])[:, None] / 2
    transition, entry = (1 + half) / (1 - half), np.exp(tree["dt_log"])[:, None] * B / (1 - half)
    h, y = np.zeros(B.shape, complex), []
    for u in x:
        h = (transition + entry * u[:, None]) * h + entry * u[:, None]
        y.append(2 * (C * h).sum(-1).real + tree["D"] * u)
    return np.array(y)


@pytest.mark.slow
def test_a_token_loop():
    """Over more than one chunk, and the gradients of the tree are those of the recurrence."""
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(1, 70, 3))
        mixer = mixers.make("liquid_s4", d_model=3, d_state=6, dtype="float64")
        params = nn.meta.unbox(normals(mixer.init, x))
        params["params"]["out"] = {"kernel": np.eye(3), "bias": np.zeros(3)}

        @jax.jit
        def run(params, x):
            def loss(params, implementation):
                y, _ = mixer.clone(implementation=implementation).apply(params, x)
                return (y**2).sum(), y

            return [jax.grad(loss, has_aux=True)(params, name) for name in ("xla", "reference")]

        (gradients, y), (of_loop, _) = run(params, x)
        expected = jax.jit(functools.partial(jax.nn.gelu, approximate=False))(oracle(params["params"], x[0]))
    assert y.dtype == np.float64
    assert_close(y[0], expected, FLOAT64)
    assert_close(gradients, of_loop, 5 * FLOAT64)
