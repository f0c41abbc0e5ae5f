"""Prompts of unequal lengths, padded on the left as tokenizers do, continue as each of them alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import mixers
from based_jax.generate import generate
from based_jax.models import LanguageModel, presets
from tests.generate.tiny import random_params

PROMPTS = [[7, 3, 3, 1, 9, 2, 8, 4, 4, 4, 6], [5], [2, 9, 1, 1]]


def small(name):
    """The preset with a layer of each kind, and few channels and tokens."""
    config = presets.get(name)
    schedule = "".join(sorted(set(config.schedule)))
    sizes = {"d_model": 192, "vocab_size": 50, "pad_vocab_multiple": 1, "schedule": schedule}
    return config.replace(**sizes, mlp_hidden=config.mlp_hidden and 32)


def kinds():
    """One preset of each kind of model whose layers continue from a state."""
    found = {}
    for name in presets.names():
        config = small(name)
        if all(mixers.info(spec.mixer).stateful for spec in config.mixers.values()):
            names = sorted(spec.mixer for spec in config.mixers.values())
            found.setdefault((*names, config.block, config.positions), name)
    return sorted(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds())
def test_a_batch_padded_on_the_left_continues_as_each_prompt_alone(name):
    model = LanguageModel(small(name))
    params, width = random_params(model), max(map(len, PROMPTS))
    padded, mask = np.full((len(PROMPTS), width), 0), np.zeros((len(PROMPTS), width), int)
    for row, prompt in enumerate(PROMPTS):
        padded[row, width - len(prompt) :], mask[row, width - len(prompt) :] = prompt, 1
    together = generate(model, params, padded, 8, attention_mask=jnp.asarray(mask))
    for row, prompt in enumerate(PROMPTS):
        assert generate(model, params, [prompt], 8).tolist() == [together[row].tolist()]
