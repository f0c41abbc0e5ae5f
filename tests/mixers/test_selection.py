"""Mixers that select tokens: learned, programmatic and random selection, hard selection, and their losses."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers, ops
from based_jax.mixers.selection_heads import root_of
from based_jax.models import LanguageModel, presets
from based_jax.testing import laws
from tests.arrays import normals
from tests.mixers.built import runner
from tests.tolerances import FLOAT32, assert_close

WIDTH = 12
X = laws.inputs(2, 13, WIDTH, 0)
MASK = np.arange(13) < np.array([[13], [7]])
IDS = np.repeat([[0, 1]], [5, 8], axis=1).repeat(2, axis=0).astype(np.int32)


def scores_of(run: laws.Runner) -> np.ndarray:
    """One score per token of `X`: (B, N)."""
    kernel = meta.unbox(run.variables)["params"]["selecting"]["kernel"]
    return (X @ np.asarray(kernel))[..., 0]


def weights_of(run: laws.Runner) -> np.ndarray:
    """Sigmoids of the scores: (B, N)."""
    return 1 / (1 + np.exp(-scores_of(run)))


def loss_of(run: laws.Runner, **context: Any) -> float:
    """The auxiliary loss of `X`."""

    @jax.jit
    def collect(variables, x, context):
        return run.mixer.apply(variables, x, mutable=["losses"], **context)[1]

    return float(mixers.auxiliary_loss(collect(run.variables, X, laws.everything(X, context))))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("sigmoid_lookups", {}, marks=pytest.mark.slow),
        ("sigmoid_lookups", {"lookups": 2}),
        pytest.param("selective_lookups", {"causal": False}, marks=pytest.mark.release),
    ],
    ids=str,
)
def test_hard_selection_updates_the_highest_weights_of_each_document(name, options):
    soft, hard = (runner(name, d_model=WIDTH, hard=hard, **options) for hard in (False, True))
    for context in ({}, {"mask": MASK}, {"segment_ids": IDS}):
        y, chosen = (laws.packed(mixer, X, **context) for mixer in (soft, hard))
        real = context.get("mask", np.ones(X.shape[:2], bool))
        is_updated = real & np.any(chosen != X, axis=-1)
        expected = np.where(is_updated[..., None], y, X)
        assert_close(*(np.where(real[..., None], array, 0) for array in (chosen, expected)), FLOAT32)
        counts = {13: 2, 7: 2, 5: 2, 8: 2} if "lookups" in options else {13: 4, 7: 3, 5: 3, 8: 3}
        lengths = [[5, 8], [5, 8]] if "segment_ids" in context else [[13], [7 if "mask" in context else 13]]
        order = scores_of(soft)
        for row, sizes in enumerate(lengths):
            begin = 0
            for size in sizes:
                best = begin + np.argsort(-order[row, begin : begin + size])[: counts[size]]
                assert np.flatnonzero(is_updated[row, begin : begin + size]).size == counts[size]
                assert np.all(is_updated[row, best])
                begin += size


def test_counts_are_exact_where_a_square_root_is_off_by_one_bit(monkeypatch):
    """As a GPU's may be."""
    root = jnp.sqrt
    lengths = np.arange(1000)
    for side in (-np.inf, np.inf):
        monkeypatch.setattr(jnp, "sqrt", lambda x, side=side: jnp.nextafter(root(x), jnp.float32(side)))
        expected = [math.isqrt(max(n - 1, 0)) + (n > 0) for n in lengths]
        np.testing.assert_array_equal(root_of(jnp.asarray(lengths)), expected)


def test_losses_are_no_variables_and_only_collected_on_request():
    for name in ("sigmoid_lookups", "selected_attention"):
        mixer = mixers.make(name, d_model=WIDTH)
        variables = jax.eval_shape(mixer.init, jax.random.key(0), X)
        assert set(variables) == {"params"}
        assert len(jax.eval_shape(mixer.apply, variables, X)) == 2  # outputs and state, no collection
    assert mixers.auxiliary_loss({}) == 0


def test_a_softmax_over_time_sums_to_one_in_each_document():
    """With equal attention outputs the update is the weight."""
    mixer = runner("selective_lookups", d_model=WIDTH, causal=False)
    params = jax.tree.map(np.asarray, meta.unbox(mixer.variables))["params"]
    for name in "qkv":
        params[name] = jax.tree.map(np.zeros_like, params[name])
    params["out"]["bias"] = np.ones_like(params["out"]["bias"])
    mixer.variables = {"params": params}
    for context, totals in (({}, [1, 1]), ({"mask": MASK}, [1, 1]), ({"segment_ids": IDS}, [2, 2])):
        update = (laws.packed(mixer, X, **context) - X)[..., 0]
        if "mask" in context:
            update = np.where(MASK, update, 0)
        np.testing.assert_allclose(update.sum(1), totals, rtol=1e-5)


@pytest.mark.release
def test_they_penalise_the_mean_weight():
    for lookups in (None, 1):
        mixer = runner("sigmoid_lookups", d_model=WIDTH, lookups=lookups, penalty=0.5)
        s = weights_of(mixer)
        aim = [(lookups or np.sqrt(n)) / n for n in (13, 7)]
        assert_close(loss_of(mixer), 0.5 * max(s.mean() - aim[0], 0), 1e-5)
        expected = (s - [[aim[0]], [aim[1]]])[MASK].mean()
        assert_close(loss_of(mixer, mask=MASK), 0.5 * max(expected, 0), 1e-5)


def selected(**options):
    return runner("selected_attention", d_model=WIDTH, **options)


def test_learned_selection_penalises_what_exceeds_k():
    mixer = selected(share=0.25, penalty=0.5)
    s = weights_of(mixer)
    expected = np.mean([max(s[row].sum() - 4, 0) / 13 for row in range(2)])
    assert_close(loss_of(mixer), 0.5 * expected, 1e-5)
    packed = [
        max(s[row, part].sum() - k, 0) for row in range(2) for part, k in ((slice(5), 2), (slice(5, 13), 2))
    ]
    assert_close(loss_of(mixer, segment_ids=IDS), 0.5 * sum(packed) / 26, 1e-5)


@pytest.mark.release
def test_learned_selection_keeps_the_k_highest_scores():
    """The form that computes few queries is full attention times the weights of the k highest."""
    full = selected(selection="full", rotary_fraction=0.5)
    learned = selected(causal=False, share=0.25, rotary_fraction=0.5)
    params = meta.unbox(learned.variables)["params"]
    full.variables = {"params": {name: params[name] for name in ("q", "k", "v", "out")}}
    s = weights_of(learned)
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
    full = selected(selection="full")
    sparse = selected(selection="programmatic", order=2)
    expected = np.where(np.asarray(ops.selection.repeated(tokens, 2))[..., None], full(X)[0], 0)
    assert_close(sparse(X, tokens=tokens)[0], expected, FLOAT32)
    with pytest.raises(ValueError, match=r"tokens = None: expected ids \(B, N\)"):
        sparse(X)


@pytest.mark.release
def test_a_model_passes_the_token_ids_and_its_state_remembers_them():
    config = presets.get("based-tiny").replace(vocab_size=8, pad_vocab_multiple=1, schedule="L", d_model=12)
    config = config.with_mixer("selected_attention", [0], selection="programmatic", order=2)
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
        for chunk in (slice(0, 4), slice(4, 13)):
            logits, state = model.apply(
                params, tokens[:, chunk], state, segment_ids=ids[:, chunk], mask=mask[:, chunk]
            )
            parts.append(logits)
        return jnp.concatenate(parts, axis=1)

    real = MASK[..., None]
    assert_close(np.where(real, chunks(params), 0), np.where(real, whole(params), 0), FLOAT32)


@pytest.mark.release
def test_random_selection_is_fixed_by_position_or_drawn_anew():
    mixer = selected(selection="random", share=0.5)
    is_on = np.any(laws.packed(mixer, X) != 0, axis=-1)
    assert np.array_equal(is_on[0], is_on[1])
    assert 2 < is_on[0].sum() < 11
    with jax.enable_x64(True):
        assert np.array_equal(np.any(mixer(X)[0] != 0, axis=-1), is_on)
    laws.split_law(mixer, X, [6, 1, 6])
    laws.segment_law(mixer, X, [6, 1, 6])

    @jax.jit
    def with_rng(key):
        return mixer.mixer.apply(mixer.variables, X, rngs={"selection": key})[0]

    one, two = (np.any(np.asarray(with_rng(jax.random.key(seed))) != 0, axis=-1) for seed in (0, 1))
    assert np.any(one != two)
    assert np.any(one[0] != one[1])


def test_noise_moves_the_learned_selection_only_with_an_rng():
    mixer = selected(noise=100.0)
    with_rng = jax.jit(lambda key: mixer.mixer.apply(mixer.variables, X, rngs={"selection": key})[0])
    plain, noisy = (
        np.any(mixer(X)[0] != 0, axis=-1),
        np.any(np.asarray(with_rng(jax.random.key(0))) != 0, axis=-1),
    )
    assert np.array_equal(plain, weights_of(mixer) > 0.5)
    assert np.any(noisy != plain)
