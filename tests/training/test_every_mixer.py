"""Any mixer can take the place of any layer of any model, and learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from based_jax import mixers
from based_jax.models import LanguageModel
from based_jax.models.sharding import RULES
from based_jax.testing.laws import QUICKLY
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.step import TrainState, make_train_step
from tests.marks import slow_but

STEPS = 50


@pytest.mark.parametrize("name", slow_but(["input_conv"], mixers.names(), core=[]))
def test_trains_in_place_of_a_layer(tiny_config, name):
    """A repeated pattern of 8 tokens; packed documents and a padded row included."""
    config = tiny_config.replace(vocab_size=16, pad_vocab_multiple=1, schedule="L").with_mixer(name)
    assert config.layer(0).mixer == name
    model = LanguageModel(config)
    tokens = np.tile(np.random.default_rng(0).permutation(16)[:8], (4, 3))[:, :17]
    batch = {
        "inputs": jnp.asarray(tokens[:, :-1]),
        "targets": jnp.asarray(tokens[:, 1:]),
        "mask": jnp.arange(16) < jnp.array([16, 16, 16, 11])[:, None],
        "segment_ids": jnp.asarray(np.repeat([[0, 1]], 8, axis=1).repeat(4, axis=0)),
    }
    settings = OptimizerConfig(learning_rate=1e-2)
    optimizer = make_optimizer(settings, STEPS)
    step = make_train_step(model, optimizer, learning_rate_schedule(settings, STEPS))

    def run():
        params = nn.meta.unbox(model.init(jax.random.key(0), batch["inputs"]))
        state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
        return lax.scan(lambda state, _: step(state, batch), state, length=STEPS)[1]["loss"]

    losses = np.asarray(jax.jit(run, compiler_options=QUICKLY)())
    assert np.all(np.isfinite(losses))
    assert abs(losses[0] - np.log(16)) < 0.2
    assert losses[-1] < 0.5 * losses[0]
    assert np.mean(losses[25:]) < np.mean(losses[:25])


@pytest.mark.parametrize("name", mixers.names())
def test_parameters_can_be_sharded(name):
    """Every axis has a name that the rules know, and no parameter is cut twice over one mesh axis."""
    mixer = mixers.make(name, d_model=16)
    boxed = jax.eval_shape(mixer.init, jax.random.key(0), jnp.zeros((1, 2, 16)))
    rules = dict(RULES)
    for spec in jax.tree.leaves(nn.get_partition_spec(boxed), is_leaf=lambda x: isinstance(x, tuple)):
        named = [axis for axis in spec if axis is not None]
        assert set(named) <= rules.keys(), spec
        cut = [rules[axis] for axis in named if rules[axis] is not None]
        assert len(set(cut)) == len(cut), spec
