"""Feature maps of users: registered by name, and what is refused."""

import jax.numpy as jnp
import pytest

import based_jax as bj
from based_jax.mixers import LinearAttention
from based_jax.ops.feature_maps import MAPS
from based_jax.testing import check_mixer


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What a test registers is forgotten."""
    monkeypatch.setattr(MAPS, "entries", dict(MAPS.entries))


def doubled(x):
    return jnp.concatenate([jnp.exp(x), jnp.exp(-x)], axis=-1)


def test_a_registered_map_obeys_the_laws():
    bj.feature_maps.register("doubled")(doubled)
    assert "doubled" in bj.feature_maps.names()
    mixer = LinearAttention(12, num_heads=2, feature_dim=4, feature_map="doubled")
    assert mixer.init_state(3).kv.shape == (3, 2, 8, 6)
    check_mixer(LinearAttention, num_heads=2, feature_dim=4, feature_map="doubled", feature_scale=0.1)


def test_a_map_that_reads_other_tokens_breaks_a_law():
    bj.feature_maps.register("wrong")(lambda x: jnp.exp(x - x.max(axis=-2, keepdims=True)))
    with pytest.raises(AssertionError):
        check_mixer(LinearAttention, num_heads=2, feature_dim=4, feature_map="wrong")


def test_a_config_takes_it_at_once():
    bj.feature_maps.register("doubled")(doubled)
    config = bj.presets.get("based-tiny").with_mixer("linear_attention", feature_map="doubled")
    assert bj.ModelConfig.from_dict(config.to_dict()) == config
    bj.feature_maps.register("doubled")(doubled)  # again, as a notebook does


def test_a_feature_map_with_a_similarity():
    phi = bj.ops.FeatureMap(lambda x: x * x, None, lambda width: width)
    assert bj.feature_maps.register("mine")(phi) is phi
    assert bj.ops.feature_map("mine") is phi


@pytest.mark.parametrize("name", ["relu", "performer"])
def test_a_name_that_is_taken_is_refused(name):
    with pytest.raises(ValueError, match=f"name = '{name}': expected a"):
        bj.feature_maps.register(name)(doubled)
    bj.feature_maps.register("doubled")(doubled)
    with pytest.raises(ValueError, match=r"name = 'doubled': expected a name that .*doubled does not have"):
        bj.feature_maps.register("doubled")(lambda x: x)


@pytest.mark.parametrize("phi", [lambda q, k: q * k, lambda: 1, 3])
def test_what_is_not_a_function_of_one_array_is_refused(phi, unchecked):
    with pytest.raises(TypeError, match=r"feature map 'x' = .*: expected a function of one array"):
        bj.feature_maps.register("x")(phi)


@pytest.mark.parametrize("phi", [lambda x: x.sum(-1), lambda x: x[0], lambda x: x > 0, lambda x: (x, x)])
def test_results_of_another_shape_or_dtype_are_refused(phi):
    bj.feature_maps.register("x")(phi)
    mixer = LinearAttention(12, num_heads=2, feature_dim=4, feature_map="x")
    with pytest.raises(ValueError, match=r"feature map 'x' of x, \(2, 3, 4\), = .*: expected floating"):
        mixer.init_state(1)
