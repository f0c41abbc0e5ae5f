"""Selected attention: learned, programmatic and random selection, and the loss of the learned one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import ops
from based_jax.models import LanguageModel, presets
from based_jax.testing import laws
from tests.arrays import normals
from tests.mixers import selection
from tests.mixers.built import runner
from tests.mixers.selection import IDS, MASK, WIDTH, X
from tests.tolerances import FLOAT32, assert_close


def run(**options):
    return runner("selected_attention", d_model=WIDTH, **options)


def test_learned_selection_penalises_what_exceeds_k():
    mixer = run(share=0.25, penalty=0.5)
    s = selection.weights(mixer)
    expected = np.mean([max(s[row].sum() - 4, 0) / 13 for row in range(2)])
    assert_close(selection.loss(mixer), 0.5 * expected, 1e-5)
    packed = [
        max(s[row, part].sum() - k, 0) for row in range(2) for part, k in ((slice(5), 2), (slice(5, 13), 2))
    ]
    assert_close(selection.loss(mixer, segment_ids=IDS), 0.5 * sum(packed) / 26, 1e-5)


def test_learned_selection_keeps_the_k_highest_scores():
    """The form that computes few queries is full attention times the weights of the k highest."""
    full = run(selection="full", rotary_fraction=0.5)
    learned = run(causal=False, share=0.25, rotary_fraction=0.5)
    params = meta.unbox(learned.variables)["params"]
    full.variables = {"params": {name: params[name] for name in ("q", "k", "v", "out")}}
    s = selection.weights(learned)
    for context, parts in (
        ({}, [(0, 0, 13, 4), (1, 0, 13, 4)]),
        ({"mask": MASK}, [(0, 0, 13, 4), (1, 0, 7, 2)]),
        ({"segment_ids": IDS}, [(row, *part) for row in (0, 1) for part in ((0, 5, 2), (5, 13, 2))]),
    ):
        weights = np.zeros_like(s)
        for row, begin, end, k in parts:
            best = begin + np.argsort(-s[row, begin:end])[:k]
            weights[row, best] = s[row, best]
        y, of_full = (laws.packed(mixer, X, **context) for mixer in (learned, full))
        assert_close(y, weights[..., None] * of_full, FLOAT32)


def test_programmatic_selection_compares_token_ids():
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, 13)))
    full = run(selection="full")
    sparse = run(selection="programmatic", order=2)
    expected = np.where(np.asarray(ops.selection.repeated(tokens, 2))[..., None], full(X)[0], 0)
    assert_close(sparse(X, tokens=tokens)[0], expected, FLOAT32)
    with pytest.raises(ValueError, match=r"tokens = None: expected ids \(B, N\)"):
        sparse(X)


def test_a_model_passes_the_token_ids_and_its_state_remembers_them():
    config = presets.get("based-tiny").replace(vocab_size=8, pad_vocab_multiple=1, schedule="CL", d_model=12)
    config = config.with_mixer("selected_attention", [1], selection="programmatic", order=2)
    model = LanguageModel(config)
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 3, (2, 13)))
    ids, mask = jnp.asarray(IDS), jnp.asarray(MASK)
    params = meta.unbox(normals(model.init, tokens))

    @jax.jit
    def whole(params):
        return model.apply(params, tokens, segment_ids=ids, mask=mask)[0]

    @jax.jit
    def chunks(params):
        state, parts = model.init_state(2, 20), []
        for chunk in (slice(0, 3), slice(3, 4), slice(4, 13)):
            logits, state = model.apply(
                params, tokens[:, chunk], state, segment_ids=ids[:, chunk], mask=mask[:, chunk]
            )
            parts.append(logits)
        return jnp.concatenate(parts, axis=1)

    real = MASK[..., None]
    assert_close(np.where(real, chunks(params), 0), np.where(real, whole(params), 0), FLOAT32)


def test_random_selection_is_fixed_by_position_or_drawn_anew():
    mixer = run(selection="random", share=0.5)
    is_on = np.any(mixer(X)[0] != 0, axis=-1)
    assert np.array_equal(is_on[0], is_on[1])
    assert 2 < is_on[0].sum() < 11
    laws.split_law(mixer, X, [6, 1, 6])
    laws.segment_law(mixer, X, [6, 1, 6])

    @jax.jit
    def with_rng(key):
        return mixer.mixer.apply(mixer.variables, X, rngs={"selection": key})[0]

    one, two = (np.any(np.asarray(with_rng(jax.random.key(seed))) != 0, axis=-1) for seed in (0, 1))
    assert np.any(one != two)
    assert np.any(one[0] != one[1])


def test_noise_moves_the_learned_selection_only_with_an_rng():
    mixer = run(noise=100.0)
    with_rng = jax.jit(lambda key: mixer.mixer.apply(mixer.variables, X, rngs={"selection": key})[0])
    plain, noisy = (
        np.any(mixer(X)[0] != 0, axis=-1),
        np.any(np.asarray(with_rng(jax.random.key(0))) != 0, axis=-1),
    )
    assert np.array_equal(plain, selection.weights(mixer) > 0.5)
    assert np.any(noisy != plain)
