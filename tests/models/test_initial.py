"""Layers of one kind are drawn in one loop: the same distribution, independent layers, the right shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.models import MixerSpec
from based_jax.models.initial import draw_alike
from based_jax.models.language_model import layer_kinds

TOKENS = jnp.zeros((1, 4), jnp.int32)
CONFIG = bj.ModelConfig(
    vocab_size=32,
    d_model=32,
    schedule="CCSRRC",
    mixers={
        "C": MixerSpec("gated_conv"),
        "S": MixerSpec("sliding_window", {"num_heads": 2, "left": 3}),
        "R": MixerSpec("rwkv4"),
    },
    mlp_hidden=32,
)


@pytest.fixture(scope="module")
def params():
    return jax.jit(bj.LanguageModel(CONFIG).init)(jax.random.key(0), TOKENS)["params"]


def test_kinds_of_layers():
    """RWKV's initial values depend on the depth."""
    assert layer_kinds(CONFIG) == [[0, 1, 5], [2], [3], [4]]


def test_draws_do_not_depend_on_other_layers(params):
    """So that a program for some layers, as for `param_shapes`, agrees."""
    shorter = bj.LanguageModel(CONFIG.replace(schedule="CCS", init_std=CONFIG.init_std))
    own = jax.jit(shorter.init)(jax.random.key(0), TOKENS)["params"]
    for layer in ("layers_0", "layers_1"):
        kernels = [jax.tree.leaves(each[layer]["mixer"]["in_proj"]["kernel"])[0] for each in (params, own)]
        np.testing.assert_array_equal(*kernels)


def test_layers_are_independent_with_the_configured_deviation(params):
    kernels = [
        np.asarray(jax.tree.leaves(params[f"layers_{layer}"]["mixer"]["in_proj"]["kernel"])[0]).ravel()
        for layer in (0, 1, 5)
    ]
    assert np.std(kernels, axis=1) == pytest.approx(CONFIG.init_std, rel=0.1)
    assert np.abs(np.corrcoef(kernels) - np.eye(3)).max() < 0.1


def test_init_with_output_is_apply_of_init():
    model = bj.LanguageModel(CONFIG.replace(schedule="CSC"))
    variables = jax.jit(model.init)(jax.random.key(0), TOKENS)
    (logits, _), others = jax.jit(model.init_with_output)(jax.random.key(0), TOKENS)
    jax.tree.map(np.testing.assert_array_equal, variables, others)
    np.testing.assert_allclose(logits, jax.jit(model.apply)(variables, TOKENS)[0], atol=1e-5)


def test_constants_stay_outside_of_the_loop():
    def draw(key):
        return {"random": jax.random.normal(key, (3,)), "ones": jnp.ones(2)}

    keys = jax.random.split(jax.random.key(0), 4)
    drawn = draw_alike(draw, keys)
    for key, each in zip(keys, drawn, strict=True):
        np.testing.assert_allclose(each["random"], draw(key)["random"], rtol=1e-6)
        assert each["ones"].tolist() == [1, 1]
    (scan,) = [
        step
        for step in jax.make_jaxpr(lambda keys: draw_alike(draw, keys))(keys).eqns
        if step.primitive.name == "scan"
    ]
    assert [value.aval.shape for value in scan.outvars] == [(4, 3)]
