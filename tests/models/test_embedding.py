"""Token and position embeddings: how they start, what they add, segments and padding, and a frozen table."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.models import MixerSpec
from based_jax.models.layers import sinusoids
from tests.arrays import array, normals
from tests.tolerances import FLOAT32, assert_close

CONFIG = bj.ModelConfig(
    vocab_size=12,
    d_model=6,
    schedule="C",
    mixers={"C": MixerSpec("short_conv")},
    mlp="none",
    pad_vocab_multiple=1,
    max_positions=9,
    positions="sinusoidal",
)
TOKENS = array([[3, 1, 4, 1, 5, 9, 2, 6]], np.int32)


def test_sines_and_cosines():
    for width in [6, 7]:
        table = np.asarray(sinusoids(9, width, jnp.float32))
        for position in (0, 1, 8):
            for channel in range(width):
                angle = position * 10000.0 ** (-2 * (channel // 2) / width)
                wanted = np.cos(angle) if channel % 2 else np.sin(angle)
                assert abs(table[position, channel] - wanted) < 1e-6


@pytest.mark.slow
def test_fixed_positions_are_a_learned_table_that_is_not_there():
    fixed, learned = bj.LanguageModel(CONFIG), bj.LanguageModel(CONFIG.replace(positions="learned"))
    params = normals(learned.init, TOKENS)
    table = params["params"].pop("position_embedding")
    params["params"] = dict(params["params"])
    assert set(params["params"]) == set(jax.eval_shape(fixed.init, jax.random.key(0), TOKENS)["params"])
    filled = jax.tree.map(lambda _: sinusoids(9, 6, jnp.float32), table)
    wanted, _ = learned.apply({"params": params["params"] | {"position_embedding": filled}}, TOKENS)
    assert_close(fixed.apply(params, TOKENS)[0], wanted, FLOAT32)
    # From a state on, positions go on; beyond the table there is nothing.
    _, state = fixed.apply(params, TOKENS[:, :4], fixed.init_state(1, 12))
    rest, state = fixed.apply(params, TOKENS[:, 4:], state)
    assert_close(rest, wanted[:, 4:], FLOAT32)
    last, state = fixed.apply(params, TOKENS[:, :1], state)
    assert np.isfinite(last).all()
    assert np.isnan(fixed.apply(params, TOKENS[:, :1], state)[0]).all()


@pytest.mark.release
def test_learned_positions_of_segments_and_padding():
    """Positions start anew with a segment, and padding may lie beyond the table."""
    attention = {"A": MixerSpec("attention", {"num_heads": 2, "rotary_fraction": 0.0})}
    model = bj.LanguageModel(CONFIG.replace(schedule="A", mixers=attention, positions="learned"))
    params, apply = normals(model.init, TOKENS, scale=0.5), jax.jit(model.apply)
    rows = np.random.default_rng(0).integers(0, 12, (2, 12)).astype(np.int32)
    mask = np.arange(12) < np.array([[4], [9]])
    logits, state = apply(params, rows, model.init_state(2, 12), mask=mask)
    for row, count in enumerate((4, 9)):
        alone, _ = apply(params, rows[row : row + 1, :count])
        assert_close(logits[row : row + 1, :count], alone, FLOAT32)
    chex.assert_tree_all_finite(state)
    packed, _ = apply(params, rows[1:, :9], segment_ids=np.array([[0] * 5 + [1] * 4]))
    assert_close(packed[:, 5:], apply(params, rows[1:, 5:9])[0], FLOAT32)


def test_ids_of_few_bits_are_those_of_32():
    """The number of rows, 300, would be 44 beside them."""
    model = bj.LanguageModel(CONFIG.replace(vocab_size=300))
    params, ids = normals(model.init, TOKENS), np.array([[44, 7, 255]])
    wanted, got = (model.apply(params, ids.astype(dtype))[0] for dtype in ("int32", "uint8"))
    np.testing.assert_array_equal(got, wanted)
    assert np.isfinite(got).all()


@pytest.mark.parametrize("kind", ["normal", "spherical"])
def test_initial_values(kind):
    config = CONFIG.replace(vocab_size=512, embed_init=kind, tie_embeddings=False, d_model=16)
    params = jax.jit(bj.LanguageModel(config).init)(jax.random.key(0), TOKENS)["params"]
    table, head = (np.asarray(jax.tree.leaves(params[name])[0]) for name in ("embedding", "head"))
    if kind == "spherical":
        assert_close(np.linalg.norm(table, axis=1), np.ones(512), FLOAT32)
    else:
        assert 0.95 < table.std() < 1.05
    assert abs(table.mean()) < 0.02
    assert 0.019 < head.std() < 0.021


def test_a_frozen_table_has_no_gradient():
    config = CONFIG.replace(freeze_embedding=True, tie_embeddings=False)
    model, learning = bj.LanguageModel(config), bj.LanguageModel(config.replace(freeze_embedding=False))
    params = normals(model.init, TOKENS)

    def gradient(model):
        loss = jax.grad(lambda params: jnp.sum(jnp.square(model.apply(params, TOKENS)[0])))
        return jax.jit(loss)(params)["params"]

    frozen, learned = gradient(model), gradient(learning)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(frozen["embedding"]))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(learned["embedding"]))
    assert_close(jax.tree.leaves(frozen["head"])[0], jax.tree.leaves(learned["head"])[0], FLOAT32)


@pytest.mark.slow
def test_narrow_embeddings_train_and_decode():
    """The body's output is what the head multiplies: `hidden` has the embedding's width."""
    config = CONFIG.replace(embed_dim=4, max_positions=0)
    model = bj.LanguageModel(config)
    params = normals(model.init, TOKENS)
    made = np.asarray(bj.generate(model, params, TOKENS, max_new_tokens=4))
    whole = np.concatenate([np.asarray(TOKENS), made], axis=1)[:, :-1]
    hidden, _ = jax.jit(model.apply, static_argnames="method")(params, whole, method="hidden")
    table = np.asarray(model.output_embedding(params))
    assert (hidden.shape, table.shape) == ((1, 11, 4), (12, 4))
    logits = np.asarray(model.apply(params, whole)[0])
    assert_close(np.asarray(hidden) @ table.T, logits, FLOAT32)
    assert np.array_equal(logits[:, 7:].argmax(-1), made)
