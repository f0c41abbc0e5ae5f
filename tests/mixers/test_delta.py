"""DeltaNet, Gated DeltaNet and RWKV-7: what is theirs beside the contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from based_jax import mixers
from based_jax.convert import from_torch, to_torch
from tests.arrays import normals
from tests.mixers import laws


def gradients(mixer, x):
    """Of a freshly initialised mixer's parameters."""

    @jax.jit
    def run(x):
        variables = mixer.init(jax.random.key(0), x)
        return jax.grad(lambda variables: jnp.sum(mixer.apply(variables, x)[0] ** 2))(variables)

    return jax.device_get(run(x))


@pytest.mark.parametrize("removal_init", [0.85, 0.0])
def test_rwkv7_learns_to_remove_unless_it_starts_without(removal_init):
    """At k_k = 0 its gradient is zero, all others learn: why the default is not Zoology's."""
    mixer = mixers.make("rwkv7", d_model=12, removal_init=removal_init)
    tree = nn.meta.unbox(gradients(mixer, laws.inputs(1, 9, 12, 0)))["params"]
    assert np.any(tree.pop("removal")) == bool(removal_init)
    if removal_init:
        assert all(np.any(x) for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("delta_net", {"qk_norm": "sum"}, "qk_activation = 'silu': expected 'relu' or 'elu' with qk_norm"),
        ("delta_net", {"qk_norm": "max"}, "qk_norm = 'max': expected one of 'l2', 'sum'"),
        ("delta_net", {"qk_activation": "gelu"}, "qk_activation = 'gelu'"),
        ("delta_net", {"num_heads": 3}, "d_model = 8: expected a multiple of num_heads = 3"),
        ("gated_delta_net", {"expand_v": 0}, "expand_v = 0: expected at least 1"),
        ("gated_delta_net", {"kernel_size": 0}, "kernel_size = 0: expected at least 1"),
        ("rwkv7", {"head_dim": 3}, "d_model = 8: expected a multiple of head_dim = 3"),
        ("rwkv7", {"gate_rank": 0}, "gate_rank = 0: expected at least 1"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(mixers.make(name, d_model=8, **options).init, jax.random.key(0), jnp.zeros((1, 3, 8)))


def test_keys_that_sum_to_one_may_be_empty():
    """A relu can leave a token without any key: no 0 / 0."""
    mixer = mixers.make("delta_net", d_model=4, qk_norm="sum", qk_activation="relu")
    tree = gradients(mixer, jnp.zeros((1, 3, 4)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def test_the_unused_parameter_of_gated_delta_net():
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
