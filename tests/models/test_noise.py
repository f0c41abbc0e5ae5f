"""Dropout and stochastic depth: what is dropped, how often, and that nothing is without a key."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.models import MixerSpec
from based_jax.models.layers import Drop
from tests.arrays import array, normals
from tests.marks import slow_but
from tests.tolerances import FLOAT32, assert_close

ALL = 1 - 1e-9
"""A rate at which everything is dropped."""
KEY = {"dropout": jax.random.key(0)}
TOKENS = np.random.default_rng(0).integers(0, 11, (2, 5)).astype(np.int32)
CONFIG = bj.ModelConfig(
    vocab_size=11,
    d_model=8,
    schedule="A",
    mixers={"A": MixerSpec("attention", {"num_heads": 2})},
    mlp_hidden=16,
    pad_vocab_multiple=1,
)


def config_of(block: str, **rates: float) -> bj.ModelConfig:
    fields = {"output_norms": "A"} if block == "prenorm, outputs" else {"block": block}
    return CONFIG.replace(**fields, **rates)


@functools.cache
def params_of(block: str):
    return normals(bj.LanguageModel(config_of(block)).init, jnp.zeros((1, 4), jnp.int32))


@functools.cache
def logits(block: str, **rates: float) -> tuple[np.ndarray, np.ndarray]:
    """Without and with noise."""
    model = bj.LanguageModel(config_of(block, **rates))

    @jax.jit
    def both(params):
        return model.apply(params, TOKENS)[0], model.apply(params, TOKENS, rngs=KEY)[0]

    calm, noisy = both(params_of(block))
    return np.asarray(calm), np.asarray(noisy)


def norm(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG.norm_eps)


def embedded(block: str):
    table = np.asarray(jax.tree.leaves(params_of(block)["params"]["embedding"])[0], np.float64)
    return table, table[TOKENS]


def scale_of(block: str, *path: str):
    leaf = params_of(block)["params"]
    for name in path:
        leaf = leaf[name]
    return np.asarray(jax.tree.leaves(leaf["scale"])[0], np.float64)


BLOCKS = ["prenorm", "prenorm, outputs", "parallel"]


@pytest.mark.parametrize("block", slow_but(BLOCKS[1:2], BLOCKS))
def test_without_its_branches_a_model_is_its_embedding(block):
    table, h = embedded(block)
    wanted = norm(h) * scale_of(block, "final_norm") @ table.T
    calm, noisy = logits(block, residual_dropout=ALL)
    assert_close(noisy, wanted, FLOAT32)
    assert np.abs(calm - wanted).max() > 0.1
    assert_close(calm, logits(block)[0], 0.0)


@pytest.mark.release
def test_without_its_branches_a_post_norm_model_is_its_norms():
    table, h = embedded("postnorm")
    for name in ("norm1", "norm2"):
        h = norm(h) * scale_of("postnorm", "layers_0", name)
    assert_close(logits("postnorm", residual_dropout=ALL, embed_dropout=ALL)[1], h @ table.T, FLOAT32)
    # The first rate is of the first mixer's output, and of nothing else.
    alone = logits("postnorm", embed_dropout=ALL)[1]
    assert np.isfinite(alone).all()
    assert np.abs(alone - h @ table.T).max() > 0.05


@pytest.mark.slow
def test_stochastic_depth_drops_the_embedding_too():
    calm, noisy = logits("prenorm", drop_path=ALL)
    assert_close(calm, logits("prenorm")[0], 0.0)
    # All that is left is the last MLP, of a norm of nothing.
    assert_close(noisy, np.zeros_like(noisy), 0.0)


def test_numbers_and_rows():
    h = array(1 + np.random.default_rng(0).random((64, 5, 40)))
    by_number = np.asarray(Drop(0.25).apply({}, h, rngs=KEY)) / np.asarray(h)
    assert_close(np.unique(by_number.round(4)), np.array([0, 4 / 3]), 1e-4)
    assert abs((by_number == 0).mean() - 0.25) < 0.02
    by_row = np.asarray(Drop(0.0, 0.25).apply({}, h, rngs=KEY)) / np.asarray(h)
    assert (by_row.min((1, 2)).round(5) == by_row.max((1, 2)).round(5)).all()
    assert 0.05 < (by_row[:, 0, 0] == 0).mean() < 0.5
    assert_close(Drop(0.25, 0.25).apply({}, h), h, 0.0)


def test_attention_weights_are_dropped():
    mixer = bj.mixers.make("attention", d_model=8, num_heads=2, dropout=0.5, rotary_fraction=0.0)
    x = array(np.random.default_rng(0).normal(size=(2, 6, 8)))
    params = normals(mixer.init, x)

    @jax.jit
    def many(keys):
        return jax.vmap(lambda key: mixer.apply(params, x, rngs={"dropout": key})[0])(keys)

    drawn = np.asarray(many(jax.random.split(jax.random.key(1), 4000)))
    calm = np.asarray(mixer.apply(params, x)[0])
    assert_close(
        calm, bj.mixers.make("attention", d_model=8, num_heads=2, rotary_fraction=0.0).apply(params, x)[0], 0
    )
    # The mean over draws is the output without noise: its standard error here is about a hundredth.
    assert_close(drawn.mean(0), calm, 0.1)
    assert np.abs(drawn[0] - calm).max() > 0.1 * np.abs(calm).max()
    # Later tokens still change nothing.
    changed = mixer.apply(params, x.at[:, -1].add(1), rngs=KEY)[0]
    assert_close(changed[:, :-1], mixer.apply(params, x, rngs=KEY)[0][:, :-1], 0.0)


@pytest.mark.release
def test_padding_and_documents_beside_dropped_weights():
    options = {"num_heads": 2, "num_kv_heads": 1, "left": 2, "dropout": 1e-9}
    mixer = bj.mixers.make("sliding_window", d_model=8, **options)
    x = array(np.random.default_rng(0).normal(size=(2, 7, 8)))
    mask = np.arange(7) < np.array([[7], [5]])
    segments = array([[0, 0, 0, 1, 1, 1, 1]] * 2, np.int32)
    params = normals(mixer.init, x)
    noisy, calm = (
        mixer.apply(params, x, mask=array(mask), segment_ids=segments, **rngs)[0]
        for rngs in ({"rngs": KEY}, {})
    )
    assert_close(np.asarray(noisy)[mask], np.asarray(calm)[mask], FLOAT32)
