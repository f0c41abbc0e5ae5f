"""The induction head on the library's MQAR task: as maps, and inside the library's language model."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data.tasks.mqar import MQAR
from based_jax.data.tasks.task import IGNORE
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.models.language_model import LanguageModel
from papers.zoology.mqar import dictionary, induction_head
from papers.zoology.mqar.induction_model import language_model, sign_codes
from papers.zoology.mqar.triples import NONE

seeds = st.integers(0, 2**32 - 1)


def one_hot_codes(tokens):
    """The unit vectors, and zeros for token 0, the filler."""
    return np.diag(np.arange(tokens) > 0).astype(float)


def rows(task, seed=0):
    segment = task.build(seed)
    return np.asarray(segment.inputs), np.asarray(segment.labels)


def model_accuracy(model, params, inputs, labels):
    answers = np.asarray(jax.jit(model.apply)(params, jnp.asarray(inputs))[0]).argmax(-1)
    return (answers == labels)[labels != IGNORE].mean()


@given(st.integers(1, 12), st.integers(2, 9), seeds)
def test_maps_find_what_the_dictionary_finds(length, tokens, seed):
    """A row has weight exactly after the positions where its token stood before; filler has none."""
    sequence = np.random.default_rng(seed).integers(0, tokens, length)
    maps = induction_head.maps(sequence, scale=None)
    for i in range(length):
        after = [j + 1 for j in range(i) if sequence[j] == sequence[i] != 0]
        np.testing.assert_array_equal(np.flatnonzero(maps.attention[i]), after)
    found = dictionary.solve_sequence(sequence) != NONE
    np.testing.assert_array_equal(maps.attention.any(axis=1), found & (sequence != 0))
    np.testing.assert_array_equal(maps.shift @ sequence, [0, *sequence[:-1]])


def test_language_model_of_width_128_at_the_papers_vocabulary():
    task = MQAR(8192, 20, 64, 16, random_fill=False)
    model, params = language_model(sign_codes(np.random.default_rng(0), task.vocab_size, 64))
    assert model_accuracy(model, params, *rows(task)) == 1.0
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    assert jax.tree.map(jnp.shape, nn.meta.unbox(shapes)) == jax.tree.map(jnp.shape, params)


@pytest.mark.slow
def test_the_shift_is_needed():
    """The same weights without the convolution's, and any attention without positions."""
    task = MQAR(65, 20, 64, 8, random_fill=False)
    inputs, labels = rows(task)
    model, params = language_model(one_hot_codes(task.vocab_size))
    params["params"]["layers_0"]["mixer"]["kernel"] *= 0
    assert model_accuracy(model, params, inputs, labels) < 0.5

    attention = MixerSpec("attention", {"num_heads": 2, "rotary_fraction": 0.0})
    config = ModelConfig(task.vocab_size, 16, "A", {"A": attention}, mlp_hidden=16, init_std=0.5)
    alone = LanguageModel(config)
    random = jax.jit(alone.init)(jax.random.key(0), inputs[:1])
    swapped, answers = induction_head.swap_values(inputs, labels)
    queries = labels != IGNORE
    assert ((answers != labels).sum(axis=1) == 2).all()
    assert dictionary.solve_sequence(swapped[0])[queries[0]].tolist() == answers[0][queries[0]].tolist()
    apply = jax.jit(alone.apply)
    logits = [np.asarray(apply(random, jnp.asarray(x))[0])[queries] for x in (inputs, swapped)]
    np.testing.assert_allclose(*logits, atol=1e-4, rtol=1e-4)
    assert np.abs(logits[0] - logits[0][0]).max() > 0.1
