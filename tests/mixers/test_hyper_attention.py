"""HyperAttention as a mixer: what the contract's tests cannot see of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers
from tests.arrays import normals
from tests.mixers import laws
from tests.tolerances import assert_close


def parameters(name, **options):
    mixer = mixers.make(name, d_model=24, **options)
    shapes = jax.eval_shape(mixer.init, jax.random.key(0), jnp.zeros((1, 2, 24)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_shared_maps_are_as_many_as_attentions():
    """4 D^2 whatever the order, and 2 n D^2 with a map per slot (table 3 of the paper: both of order D^2)."""
    assert parameters("attention") == 4 * 24**2
    for order in (2, 4):
        assert parameters("hyper_attention", order=order, num_heads=3) == 4 * 24**2
        assert parameters("hyper_attention", order=order, shared=False) == 2 * order * 24**2
        options = {"order": order, "num_heads": 3, "feature_dim": 8}
        assert parameters("linear_hyper_attention", **options) == 4 * 24**2
        assert parameters("linear_hyper_attention", **options, shared=False) == 2 * order * 24**2


def test_token_by_token_is_the_parallel_form(x64):
    """float64, a map per slot; without a tuple outputs are 0, and NaN behind the end of the state."""
    options = {"shared": False, "strict": True, "num_heads": 2, "dtype": jnp.float64}
    mixer = mixers.make("hyper_attention", d_model=6, **options)
    x = np.random.default_rng(0).normal(size=(2, 7, 6))
    run = jax.jit(mixer.apply, compiler_options=laws.QUICKLY)
    params = meta.unbox(normals(mixer.init, x))
    whole, _ = run(params, x)
    state, tokens = mixer.init_state(2, 7), []
    for t in range(7):
        y, state = run(params, x[:, t : t + 1], state)
        tokens.append(y)
    assert_close(np.concatenate(tokens, axis=1), whole, 1e-12)
    assert not np.any(whole[:, :1])
    assert np.all(whole[:, 1:])
    assert np.all(np.isnan(run(params, x[:, :1], state)[0]))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hyper_attention", {}),
        ("hyper_attention", {"shared": False, "order": 4, "left": 5}),
        ("linear_hyper_attention", {"feature_dim": 4}),
        ("linear_hyper_attention", {"feature_map": "identity", "normalize": "none", "order": 4}),
    ],
)
def test_state_sizes_are_what_is_allocated(name, options):
    mixer = mixers.make(name, d_model=64, num_heads=2, **options)
    state = jax.eval_shape(functools.partial(mixer.init_state, 1, 9))
    allocated = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.float32)
    assert allocated == mixer.state_size(9)


X = jnp.zeros((1, 3, 8))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hyper_attention", {"order": 1}, "order = 1: expected at least 2"),
        ("hyper_attention", {"left": -1}, "left = -1"),
        ("hyper_attention", {"num_heads": 3}, "d_model = 8: expected a multiple of num_heads = 3"),
        ("linear_hyper_attention", {"order": 1}, "order = 1: expected at least 2"),
        ("linear_hyper_attention", {"feature_dim": 0}, "feature_dim = 0: expected at least 1"),
        ("linear_hyper_attention", {"feature_map": "sin"}, "feature_map = 'sin': expected one of 'taylor'"),
        (
            "linear_hyper_attention",
            {"feature_map": "identity"},
            "normalize = 'sum': expected 'count' or 'none'",
        ),
        ("linear_hyper_attention", {"normalize": "rms"}, "normalize = 'rms': expected one of"),
        ("linear_hyper_attention", {"strict": True, "ordered": False}, "strict = True: expected False where"),
    ],
)
def test_bad_options_are_named(unchecked, name, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(mixers.make(name, d_model=8, **options).init, jax.random.key(0), X)


@pytest.mark.parametrize("options", [{"left": -1}, {"order": 1, "shared": False}])
def test_a_state_takes_the_same_options(options):
    with pytest.raises(ValueError, match="expected"):
        mixers.make("hyper_attention", d_model=8, **options).init_state(1, 4)


def test_a_growing_state_must_know_how_far():
    with pytest.raises(ValueError, match="max_length = None"):
        mixers.make("hyper_attention", d_model=8).init_state(1)
