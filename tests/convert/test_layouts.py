"""Layout rules: both directions of every kind, optional parts, and rules that do not fit."""

import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import mixers
from based_jax.convert.layouts import flatten, select, shapes_of, to_tensors, to_tree, torch_shapes
from based_jax.convert.tables import mixer_rules, rules_of

D, H, G, K = 6, 4, 2, 3


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_packed_projection_with_grouped_heads():
    tensors = {"w": numbers((H + 2 * G) * K, D)}
    shapes = {"q": (D, H, K), "k": (D, G, K), "v": (D, G, K)}
    rules = rules_of([["w", ["q", "k", "v"], "linear"]])
    leaves = flatten(to_tree(rules, dict(tensors), shapes))
    np.testing.assert_array_equal(leaves["k"][:, 0, 0], tensors["w"][H * K])
    np.testing.assert_array_equal(leaves["v"][:, 1, 2], tensors["w"][-1])
    np.testing.assert_array_equal(to_tensors(rules, leaves)["w"], tensors["w"])


def test_every_parameter_needs_one_rule():
    with pytest.raises(ValueError, match="'scale'"):
        select(rules_of([["w", "kernel", "linear"]]), ["kernel", "scale"])
    with pytest.raises(ValueError, match="'kernel'"):
        select(rules_of([["w", "kernel", "linear"], ["v", "kernel", "same"]]), ["kernel"])
    with pytest.raises(ValueError, match="'q'"):  # k of a packed projection is missing
        select(rules_of([["w", ["q", "k"], "linear"]]), ["q"])


def test_tree_is_float32_and_owns_its_memory():
    weight = numbers(5, D).astype(np.float16)
    tree = to_tree(rules_of([["w", "kernel", "same"]]), {"w": weight}, {"kernel": (5, D)})
    assert tree["kernel"].dtype == jnp.float32
    exact = numbers(5, D)
    tree = to_tree(rules_of([["w", "kernel", "same"]]), {"w": exact}, {"kernel": (5, D)})
    before = np.array(tree["kernel"])
    exact[:] = 0
    np.testing.assert_array_equal(tree["kernel"], before)


@pytest.mark.release
def test_every_registered_mixer_has_rules():
    for name in mixers.names():
        module = mixers.make(name, d_model=64)
        shapes = shapes_of(module, jnp.zeros((1, 4, 64)))
        rules = mixer_rules(name, shapes)
        keys = torch_shapes(rules, shapes)
        assert sum(np.prod(shape) for shape in keys.values()) == sum(
            np.prod(shape) for shape in shapes.values()
        )
