"""The classifier: the language model's own body, pooling over real tokens, any mixer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.models import MixerSpec, SequenceClassifier
from based_jax.models.classifier import pool
from based_jax.testing.laws import QUICKLY
from tests.arrays import normals
from tests.marks import slow_but

LENGTHS = np.array([6, 3, 1])
MASK = np.arange(6) < LENGTHS[:, None]


def config(mixer: str = "linear_attention", **options) -> bj.ModelConfig:
    return bj.ModelConfig(6, 16, "M", {"M": MixerSpec(mixer, options)}, mlp_hidden=16, init_std=0.3)


def tokens(seed: int) -> np.ndarray:
    """Rows whose real tokens are always the same."""
    same = np.random.default_rng(0).integers(0, 5, MASK.shape)
    return np.where(MASK, same, np.random.default_rng(seed).integers(0, 5, MASK.shape)).astype(np.int32)


def test_padding_changes_nothing():
    """With a mixer whose tokens see what is on their right."""
    model = SequenceClassifier(config("selective_lookups", causal=False), num_classes=3)
    rows, mask = np.concatenate([tokens(1), tokens(2)]), np.concatenate([MASK, MASK])
    variables = normals(model.init, tokens(1))
    found = np.asarray(jax.jit(model.apply, compiler_options=QUICKLY)(variables, rows, mask=mask)[0])
    assert found.shape == (6, 3)
    assert found.dtype == np.float32
    assert np.all(np.isfinite(found))
    assert np.ptp(found[:3], axis=0).max() > 1e-2, "rows differ"
    np.testing.assert_allclose(found[:3], found[3:], rtol=2e-6, atol=2e-6)  # float32, sums in another order


@pytest.fixture(scope="module", params=slow_but(["mean"], ["mean", "last"]))
def built(request):
    model = SequenceClassifier(config(), num_classes=3, pooling=request.param)
    return model, normals(model.init, tokens(1))


@pytest.mark.release
def test_a_padded_row_is_the_row_alone(built):
    model, params = built
    apply = jax.jit(model.apply)
    padded, _ = apply(params, tokens(1), mask=MASK)
    left, _ = apply(params, tokens(1)[:, ::-1], mask=MASK[:, ::-1])
    for row, length in enumerate(LENGTHS):
        own = tokens(1)[row : row + 1, :length]
        for found, text in ((padded, own), (left, own[:, ::-1])):
            alone, _ = apply(params, text)
            # The same sums over fewer terms, float32.
            np.testing.assert_allclose(found[row], alone[0], rtol=1e-5, atol=1e-6)


@pytest.mark.release
def test_the_body_is_the_language_model(built):
    model, params = built
    body = bj.LanguageModel(model.config)
    inner, head = params["params"]["backbone"], jax.device_get(params["params"]["head"])
    wanted = jax.eval_shape(body.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    assert jax.tree.map(jnp.shape, inner) == jax.tree.map(jnp.shape, wanted)
    hidden, _ = jax.jit(body.apply, static_argnames="method")({"params": inner}, tokens(1), method="hidden")
    pooled = np.asarray(hidden).mean(1) if model.pooling == "mean" else np.asarray(hidden)[:, -1]
    kernel, bias = (np.asarray(jax.tree.leaves(head[name])[0]) for name in ("kernel", "bias"))
    logits, state = jax.jit(model.apply)(params, tokens(1))
    np.testing.assert_allclose(logits, pooled @ kernel + bias, rtol=1e-5, atol=1e-6)  # float32, 16 terms
    assert state is None


def test_pooling_counts_real_vectors_only_and_in_float32():
    hidden = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    padded = np.where(MASK[..., None], hidden, np.inf)
    mean = np.stack([row[:length].mean(0) for row, length in zip(hidden, LENGTHS, strict=True)])
    np.testing.assert_allclose(pool(jnp.asarray(padded), jnp.asarray(MASK), "mean"), mean, rtol=1e-6)
    last = hidden[np.arange(3), LENGTHS - 1]
    np.testing.assert_array_equal(pool(jnp.asarray(padded), jnp.asarray(MASK), "last"), last)
    assert pool(jnp.ones((1, 300, 1), jnp.bfloat16), None, "mean") == 1  # 300 ones in bfloat16 are 256


def test_bad_options_are_errors():
    for options, message in [
        ({"num_classes": 1}, "num_classes = 1: expected at least 2"),
        ({"num_classes": 2, "pooling": "max"}, "pooling = 'max': expected one of 'mean', 'last'"),
    ]:
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(SequenceClassifier(config(), **options).init, jax.random.key(0), tokens(1))


def test_a_mask_of_another_shape_is_an_error(built):
    model, params = built
    with pytest.raises(ValueError, match="mask"):
        jax.eval_shape(model.apply, params, tokens(1), mask=MASK[:2])
