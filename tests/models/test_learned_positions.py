"""The learned position embedding: where it counts from, and what lies beyond it."""

import chex
import jax
import jax.numpy as jnp
import pytest

import based_jax as bj
from based_jax.models import MixerSpec, ModelConfig
from tests.arrays import normals
from tests.tolerances import FLOAT32, assert_close

MAX = 9


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(
        vocab_size=11,
        d_model=16,
        schedule="A",
        mixers={"A": MixerSpec("attention", {"num_heads": 2, "rotary_fraction": 0.0})},
        mlp="plain",
        mlp_activation="gelu",
        mlp_hidden=16,
        norm="layer",
        max_positions=MAX,
    )
    model = bj.LanguageModel(config)
    return model, normals(model.init, jnp.zeros((1, 1), jnp.int32), scale=0.5), jax.jit(model.apply)


def tokens(rows: int, length: int):
    return jax.random.randint(jax.random.key(1), (rows, length), 0, 11)


@pytest.mark.release
def test_starts_anew_with_a_segment(model):
    _, params, apply = model
    given = tokens(1, 7)
    packed, _ = apply(params, given, segment_ids=jnp.array([[0, 0, 0, 1, 1, 1, 1]]))
    for part in (slice(0, 3), slice(3, 7)):
        assert_close(packed[:, part], apply(params, given[:, part])[0], FLOAT32)


def test_padding_may_lie_beyond(model):
    module, params, apply = model
    given = tokens(2, MAX + 3)
    mask = jnp.arange(MAX + 3) < jnp.array([[4], [MAX]])
    logits, state = apply(params, given, module.init_state(2, MAX + 3), mask=mask)
    for row, count in enumerate((4, MAX)):
        alone, _ = apply(params, given[row : row + 1, :count])
        assert_close(logits[row : row + 1, :count], alone, FLOAT32)
    chex.assert_tree_all_finite(state)
