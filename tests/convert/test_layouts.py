"""Layout rules: both directions of every kind, optional parts, and rules that do not fit."""

import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import mixers
from based_jax.convert.layouts import (
    flatten,
    linear,
    renamed,
    same,
    select,
    shapes_of,
    taps,
    to_tensors,
    to_tree,
    torch_shapes,
    under,
    vector,
)
from based_jax.convert.tables import MIXERS, mixer_rules

D, H, G, K = 6, 4, 2, 3


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def there_and_back(rules, tensors, shapes):
    tree = to_tree(rules, dict(tensors), shapes)
    assert torch_shapes(rules, shapes) == {key: tensor.shape for key, tensor in tensors.items()}
    back = to_tensors(rules, flatten(tree))
    assert back.keys() == tensors.keys()
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(back[key], tensor)
    return flatten(tree)


def test_linear_is_transposed():
    weight = numbers(5, D)
    leaves = there_and_back((linear("w", "kernel"),), {"w": weight}, {"kernel": (D, 5)})
    np.testing.assert_array_equal(leaves["kernel"], weight.T)


def test_linear_into_heads():
    weight = numbers(H * K, D)  # rows: head slower than channel
    leaves = there_and_back((linear("w", "kernel"),), {"w": weight}, {"kernel": (D, H, K)})
    np.testing.assert_array_equal(leaves["kernel"][:, 2, 1], weight[2 * K + 1])


def test_linear_out_of_heads():
    weight = numbers(D, H * K)
    leaves = there_and_back((linear("w", "kernel", inputs=2),), {"w": weight}, {"kernel": (H, K, D)})
    np.testing.assert_array_equal(leaves["kernel"][2, 1], weight[:, 2 * K + 1])


def test_packed_projection_with_grouped_heads():
    weight = numbers((H + 2 * G) * K, D)
    shapes = {"q": (D, H, K), "k": (D, G, K), "v": (D, G, K)}
    leaves = there_and_back((linear("w", ("q", "k", "v")),), {"w": weight}, shapes)
    np.testing.assert_array_equal(leaves["k"][:, 0, 0], weight[H * K])
    np.testing.assert_array_equal(leaves["v"][:, 1, 2], weight[-1])


def test_several_weights_side_by_side():
    tensors = {"value": numbers(5, D), "gate": 2 * numbers(5, D)}
    rules = (linear(("value", "gate"), "kernel"),)
    leaves = there_and_back(rules, tensors, {"kernel": (D, 2, 5)})
    np.testing.assert_array_equal(leaves["kernel"][:, 0], tensors["value"].T)
    np.testing.assert_array_equal(leaves["kernel"][:, 1], tensors["gate"].T)


def test_vectors_split_and_join():
    bias = numbers((H + 2 * G) * K)
    shapes = {"q": (H, K), "k": (G, K), "v": (G, K)}
    leaves = there_and_back((vector("b", ("q", "k", "v")),), {"b": bias}, shapes)
    np.testing.assert_array_equal(leaves["v"].ravel(), bias[-G * K :])
    there_and_back((vector(("x", "y"), "b"),), {"x": numbers(5), "y": numbers(5)}, {"b": (2, 5)})


def test_taps_keep_their_order():
    weight = numbers(5, 1, 3)
    leaves = there_and_back((taps("w", "kernel"),), {"w": weight}, {"kernel": (3, 5)})
    np.testing.assert_array_equal(leaves["kernel"][-1], weight[:, 0, -1])


def test_prefixes_and_names():
    (rule,) = under(renamed((linear("out_proj.weight", "out/kernel"),), "out_proj", "proj_o"), "a.b", "c/d")
    assert (rule.keys, rule.paths) == (("a.b.proj_o.weight",), ("c/d/out/kernel",))


def test_optional_rules_are_left_out():
    rules = (linear("w", "kernel"), vector("b", "bias"))
    assert [rule.keys for rule in select(rules, ["kernel"])] == [("w",)]


def test_every_parameter_needs_one_rule():
    with pytest.raises(ValueError, match="'scale'"):
        select((linear("w", "kernel"),), ["kernel", "scale"])
    with pytest.raises(ValueError, match="'kernel'"):
        select((linear("w", "kernel"), same("v", "kernel")), ["kernel"])
    with pytest.raises(ValueError, match="'q'"):  # k of a packed projection is missing
        select((linear("w", ("q", "k")),), ["q"])


def test_a_tree_takes_its_tensors():
    """Only then a model is converted in little more memory than its own."""
    tensors = {"w": numbers(5, D), "b": numbers(5)}
    to_tree((same("w", "kernel"), same("b", "bias")), tensors, {"kernel": (5, D), "bias": (5,)})
    assert tensors == {}


def test_tree_is_float32_and_owns_its_memory():
    weight = numbers(5, D).astype(np.float16)
    tree = to_tree((same("w", "kernel"),), {"w": weight}, {"kernel": (5, D)})
    assert tree["kernel"].dtype == jnp.float32
    exact = numbers(5, D)
    tree = to_tree((same("w", "kernel"),), {"w": exact}, {"kernel": (5, D)})
    before = np.array(tree["kernel"])
    exact[:] = 0
    np.testing.assert_array_equal(tree["kernel"], before)


def test_every_registered_mixer_has_rules():
    for name in mixers.names():
        module = mixers.make(name, d_model=64)
        shapes = shapes_of(module, jnp.zeros((1, 4, 64)))
        rules = mixer_rules(name, shapes)
        keys = torch_shapes(rules, shapes)
        assert sum(np.prod(shape) for shape in keys.values()) == sum(
            np.prod(shape) for shape in shapes.values()
        )


def test_optional_parts_of_mixers_have_rules():
    for name, options in [
        ("gated_conv", {"conv_bias": True}),
        ("linear_attention", {"num_heads": 2, "feature_dim": 4, "decay": "gated"}),
        ("attention", {"num_heads": 4, "num_kv_heads": 2, "qkv_bias": True, "out_bias": True}),
        ("short_conv", {"bias": True}),
    ]:
        shapes = shapes_of(mixers.make(name, d_model=16, **options), jnp.zeros((1, 4, 16)))
        assert len(torch_shapes(MIXERS[name], shapes)) >= 2


def test_a_mixer_without_a_table_keeps_its_own_names():
    shapes = {"filter/kernel": (3, 4), "decay": (4,)}
    rules = mixer_rules("a mixer of tomorrow", shapes)
    assert torch_shapes(rules, shapes) == {"filter.kernel": (3, 4), "decay": (4,)}
