"""Initial layers are independent, and depend on the key and their index alone."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import based_jax as bj
from based_jax.mixers.initializers import draw_together, initial_shapes, normal, uniform
from based_jax.models import MixerSpec
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


TWO = bj.LanguageModel(CONFIG.replace(schedule="CC"))
init_two = jax.jit(TWO.init)


@pytest.fixture(scope="module")
def params():
    return jax.jit(bj.LanguageModel(CONFIG.replace(schedule="CCSC")).init)(jax.random.key(0), TOKENS)[
        "params"
    ]


def test_kinds_of_layers():
    """RWKV's initial values depend on the depth."""
    assert layer_kinds(CONFIG) == [[0, 1, 5], [2], [3], [4]]


@pytest.mark.slow
def test_draws_do_not_depend_on_other_layers(params):
    """So that a program for some layers, as for `param_shapes`, agrees."""
    own = init_two(jax.random.key(0), TOKENS)["params"]
    for layer in ("layers_0", "layers_1"):
        kernels = [jax.tree.leaves(each[layer]["mixer"]["in_proj"]["kernel"])[0] for each in (params, own)]
        np.testing.assert_array_equal(*kernels)


@pytest.mark.parametrize("remat", ["dots", "block"])
def test_draws_do_not_depend_on_what_is_recomputed(remat):
    own = jax.jit(bj.LanguageModel(TWO.config.replace(remat=remat)).init)(jax.random.key(0), TOKENS)
    chex.assert_trees_all_equal(own, init_two(jax.random.key(0), TOKENS))


def test_layers_are_independent_with_the_configured_deviation(params):
    kernels = [
        np.asarray(jax.tree.leaves(params[f"layers_{layer}"]["mixer"]["in_proj"]["kernel"])[0]).ravel()
        for layer in (0, 1, 3)
    ]
    assert np.std(kernels, axis=1) == pytest.approx(CONFIG.init_std, rel=0.1)
    assert np.abs(np.corrcoef(kernels) - np.eye(3)).max() < 0.1


@pytest.mark.slow
def test_init_with_output_is_apply_of_init():
    variables = init_two(jax.random.key(0), TOKENS)
    (logits, _), others = jax.jit(TWO.init_with_output)(jax.random.key(0), TOKENS)
    chex.assert_trees_all_equal(variables, others)
    np.testing.assert_allclose(logits, jax.jit(TWO.apply)(variables, TOKENS)[0], atol=1e-5)


@pytest.mark.slow
def test_a_program_kept_by_flax_serves_one_question_only():
    model, key = nn.jit(bj.LanguageModel)(TWO.config), jax.random.key(0)
    initial_shapes(model.init, key, TOKENS)
    variables = model.init(key, TOKENS)
    alike = nn.jit(bj.LanguageModel)(TWO.config.replace(norm_eps=1e-4))  # nothing is kept of it
    chex.assert_trees_all_equal(variables, alike.init(key, TOKENS))
    (logits, _), _ = model.init_with_output(key, TOKENS)
    np.testing.assert_allclose(logits, jax.jit(TWO.apply)(variables, TOKENS)[0], atol=1e-5)


def test_a_layer_is_cut_from_one_vector_that_its_key_draws():
    def init(key):
        one, other = jax.random.split(key)
        found = normal(3.0)(one, (2, 3)), normal(1.0)(other, (4,)), uniform(0.5)(other, (100,))
        return (*found, normal(1.0)(one, (2,), jnp.float16))

    key = jax.random.key(1)
    own, rest = jax.random.split(key)
    values = jax.random.normal(own, (10,))
    drawn, alone = draw_together(init, key), init(rest)
    np.testing.assert_allclose(drawn[0], 3 * values[:6].reshape(2, 3), rtol=1e-6)
    assert drawn[1].tolist() == values[6:].tolist()
    for mine, other in zip(drawn[2:], alone[2:], strict=True):
        assert mine.dtype == other.dtype
        assert mine.tolist() == other.tolist()
    assert -0.5 <= drawn[2].min() < -0.4 < 0.4 < drawn[2].max() < 0.5
    assert init(key)[1].tolist() != drawn[1].tolist()  # outside, each array by its own key


def test_kept_and_repeated_programs_draw_from_their_keys():
    """As within a mixer's `nn.jit`, whose program is that of the count, and its `nn.vmap` over heads."""

    def one(key):
        return normal(1.0)(key, (3,))

    key = jax.random.key(1)
    rest = jax.random.split(key)[1]
    assert draw_together(jax.jit(one), key).tolist() == one(rest).tolist()
    first, second = draw_together(lambda key: jax.vmap(one)(jax.random.split(key)), key).tolist()
    assert first != second


@pytest.mark.release
def test_runs_under_vmap_draw_as_alone():
    """With jax's default generator; `rbg` mixes the keys of a batch."""
    keys = jax.random.split(jax.random.key(0), 2)
    together = jax.jit(jax.vmap(TWO.init, (0, None)))(keys, TOKENS)
    alone = init_two(keys[1], TOKENS)
    chex.assert_trees_all_equal(jax.tree.map(lambda both: both[1], together), alone)
