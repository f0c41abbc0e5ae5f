"""HyperAttention: its maps, its steps against its parallel form, and the size of its state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers
from based_jax.testing import laws
from tests.arrays import normals
from tests.mixers.built import parameter_count
from tests.tolerances import assert_close


def test_shared_maps_are_as_many_as_attentions():
    """4 D^2 whatever the order, and 2 n D^2 with a map per slot (table 3 of the paper: both of order D^2)."""
    assert parameter_count("attention", d_model=24) == 4 * 24**2
    for order in (2, 4):
        assert parameter_count("hyper_attention", d_model=24, order=order, num_heads=3) == 4 * 24**2
        assert parameter_count("hyper_attention", d_model=24, order=order, shared=False) == 2 * order * 24**2
        options = {"d_model": 24, "order": order, "num_heads": 3, "feature_dim": 8}
        assert parameter_count("linear_hyper_attention", **options) == 4 * 24**2
        assert parameter_count("linear_hyper_attention", **options, shared=False) == 2 * order * 24**2


def test_token_by_token_is_the_parallel_form(x64):
    """float64, a map per slot; without a tuple outputs are 0, and NaN beyond the end of the state."""
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


def test_a_growing_state_must_know_how_far():
    with pytest.raises(ValueError, match="max_length = None"):
        mixers.make("hyper_attention", d_model=8).init_state(1)
