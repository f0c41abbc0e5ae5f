"""Sparse and selective mixers: what the contract's tests cannot see of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers, ops
from based_jax.mixers.bigbird import random_cells
from based_jax.models import LanguageModel, presets
from tests.arrays import normals
from tests.mixers import laws
from tests.tolerances import FLOAT32, assert_close

X = laws.inputs(2, 13, 12, 0)
MASK = np.arange(13) < np.array([[13], [7]])
IDS = np.repeat([[0, 1]], [5, 8], axis=1).repeat(2, axis=0).astype(np.int32)


def run(name, **options):
    return laws.Runner(mixers.make(name, d_model=12, **options))


def weights_of(runner, scores):
    kernel = meta.unbox(runner.variables)["params"]["selecting"]["kernel"]
    return scores(X @ np.asarray(kernel))


def sigmoid(x):
    return 1 / (1 + np.exp(-x[..., 0]))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sigmoid_lookups", {}),
        pytest.param("sigmoid_lookups", {"lookups": 2}, marks=pytest.mark.release),
        pytest.param("selective_lookups", {"causal": False}, marks=pytest.mark.release),
    ],
    ids=str,
)
def test_hard_selection_updates_the_highest_weights_of_each_document(name, options):
    soft, hard = run(name, **options), run(name, hard=True, **options)
    for context in ({}, {"mask": MASK}, {"segment_ids": IDS}):
        y, chosen = (laws.packed(mixer, X, **context) for mixer in (soft, hard))
        real = context.get("mask", np.ones(X.shape[:2], bool))
        is_updated = real & np.any(chosen != X, axis=-1)
        expected = np.where(is_updated[..., None], y, X)
        assert_close(*(np.where(real[..., None], array, 0) for array in (chosen, expected)), FLOAT32)
        counts = {13: 2, 7: 2, 5: 2, 8: 2} if "lookups" in options else {13: 4, 7: 3, 5: 3, 8: 3}
        lengths = [[5, 8], [5, 8]] if "segment_ids" in context else [[13], [7 if "mask" in context else 13]]
        order = weights_of(soft, lambda scores: scores[..., 0])
        for row, sizes in enumerate(lengths):
            begin = 0
            for size in sizes:
                best = begin + np.argsort(-order[row, begin : begin + size])[: counts[size]]
                assert np.flatnonzero(is_updated[row, begin : begin + size]).size == counts[size]
                assert np.all(is_updated[row, best])
                begin += size


def test_a_softmax_over_time_sums_to_one_in_each_document():
    """With equal attention outputs the update is the weight."""
    mixer = run("selective_lookups", causal=False)
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


def loss_of(runner, **context):
    @jax.jit
    def collect(variables, x, context):
        return runner.mixer.apply(variables, x, mutable=["losses"], **context)[1]

    return float(mixers.auxiliary_loss(collect(runner.variables, X, laws.everything(X, context))))


def test_sigmoid_lookups_penalise_the_mean_weight():
    for lookups in (None, 1):
        mixer = run("sigmoid_lookups", lookups=lookups, penalty=0.5)
        s = weights_of(mixer, sigmoid)
        aim = [(lookups or np.sqrt(n)) / n for n in (13, 7)]
        assert_close(loss_of(mixer), 0.5 * max(s.mean() - aim[0], 0), 1e-5)
        expected = (s - [[aim[0]], [aim[1]]])[MASK].mean()
        assert_close(loss_of(mixer, mask=MASK), 0.5 * max(expected, 0), 1e-5)


def test_learned_selection_penalises_what_exceeds_k():
    mixer = run("selected_attention", share=0.25, penalty=0.5)
    s = weights_of(mixer, sigmoid)
    expected = np.mean([max(s[row].sum() - 4, 0) / 13 for row in range(2)])
    assert_close(loss_of(mixer), 0.5 * expected, 1e-5)
    packed = [
        max(s[row, part].sum() - k, 0) for row in range(2) for part, k in ((slice(5), 2), (slice(5, 13), 2))
    ]
    assert_close(loss_of(mixer, segment_ids=IDS), 0.5 * sum(packed) / 26, 1e-5)


def test_losses_are_no_variables_and_only_collected_on_request():
    for name in ("sigmoid_lookups", "selected_attention"):
        mixer = mixers.make(name, d_model=12)
        variables = jax.eval_shape(mixer.init, jax.random.key(0), X)
        assert set(variables) == {"params"}
        assert len(jax.eval_shape(mixer.apply, variables, X)) == 2  # outputs and state, no collection
    assert mixers.auxiliary_loss({}) == 0


def test_learned_selection_keeps_the_k_highest_scores():
    """The form that computes few queries is full attention times the weights of the k highest."""
    full = run("selected_attention", selection="full", rotary_fraction=0.5)
    learned = run("selected_attention", causal=False, share=0.25, rotary_fraction=0.5)
    params = meta.unbox(learned.variables)["params"]
    full.variables = {"params": {name: params[name] for name in ("q", "k", "v", "out")}}
    s = weights_of(learned, sigmoid)
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
    full = run("selected_attention", selection="full")
    sparse = run("selected_attention", selection="programmatic", order=2)
    expected = np.where(np.asarray(ops.repeated(tokens, 2))[..., None], full(X)[0], 0)
    assert_close(sparse(X, tokens=tokens)[0], expected, FLOAT32)
    with pytest.raises(ValueError, match=r"tokens = None: expected ids \(B, N\)"):
        sparse(X)


@pytest.mark.parametrize("order", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_model_passes_the_token_ids_and_its_state_remembers_them(order):
    config = presets.get("based-tiny").replace(vocab_size=8, pad_vocab_multiple=1, schedule="CL", d_model=12)
    config = config.with_mixer("selected_attention", [1], selection="programmatic", order=order)
    model = LanguageModel(config)
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 3, (2, 13)))
    ids, mask = jnp.asarray(IDS), jnp.asarray(MASK)
    params = meta.unbox(normals(model.init, tokens))

    @jax.jit
    def whole(params):
        return model.apply(params, tokens, segment_ids=ids, mask=mask)[0]

    @jax.jit
    def pieces(params):
        state, parts = model.init_state(2, 20), []
        for piece in (slice(0, 3), slice(3, 4), slice(4, 13)):
            logits, state = model.apply(
                params, tokens[:, piece], state, segment_ids=ids[:, piece], mask=mask[:, piece]
            )
            parts.append(logits)
        return jnp.concatenate(parts, axis=1)

    real = MASK[..., None]
    assert_close(np.where(real, pieces(params), 0), np.where(real, whole(params), 0), FLOAT32)


def test_random_selection_is_fixed_by_position_or_drawn_anew():
    mixer = run("selected_attention", selection="random", share=0.5)
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
    mixer = run("selected_attention", noise=100.0)
    with_rng = jax.jit(lambda key: mixer.mixer.apply(mixer.variables, X, rngs={"selection": key})[0])
    plain, noisy = (
        np.any(mixer(X)[0] != 0, axis=-1),
        np.any(np.asarray(with_rng(jax.random.key(0))) != 0, axis=-1),
    )
    assert np.array_equal(plain, weights_of(mixer, sigmoid) > 0.5)
    assert np.any(noisy != plain)


def test_random_cells_are_squares_below_the_diagonal():
    cells = np.asarray(random_cells(jax.random.key(3), 30, 12))
    assert not np.any(np.triu(cells, 1))
    assert 4 <= cells.sum() <= 48
    corners = cells[:-1, :-1] & cells[1:, :-1] & cells[:-1, 1:] & cells[1:, 1:]
    covered = np.zeros_like(cells)
    for i, j in np.argwhere(corners):
        covered[i : i + 2, j : j + 2] = True
    assert np.array_equal(cells, covered | (cells & np.eye(30, dtype=bool)))
    assert not np.any(random_cells(jax.random.key(0), 1, 5))


def test_bigbird_sees_its_pattern_and_redraws_with_an_rng():
    """Outputs move with an input exactly where the pattern says so."""
    mixer = run("bigbird", block_size=1, l_max=13)
    cells = np.asarray(random_cells(jax.random.key(0), 13, 3))
    i, j = np.indices((13, 13))
    pattern = (j <= i) & ((i - j <= 3) | (j < 2) | cells)
    jacobian = jax.jit(jax.jacobian(lambda x: mixer.mixer.apply(mixer.variables, x)[0].sum(-1)))(X[:1])
    assert np.array_equal(np.any(np.asarray(jacobian)[0, :, 0] != 0, axis=-1), pattern)
    wide = mixer.mixer.clone(block_size=2, l_max=60)
    long = jnp.asarray(laws.inputs(1, 60, 12, 1))
    draws = jax.jit(lambda key: wide.apply(mixer.variables, long, rngs={"pattern": key})[0])
    assert np.any(draws(jax.random.key(0)) != draws(jax.random.key(1)))


def test_a_landmark_stands_for_a_piece_of_the_longest_row():
    assert mixers.make("nystrom", d_model=4, num_landmarks=16).piece == 64
    assert mixers.make("nystrom", d_model=4, num_landmarks=100, l_max=64).piece == 1
    assert mixers.make("nystrom", d_model=4, num_landmarks=5, l_max=13).piece == 3


def test_random_features_are_not_trained():
    mixer = run("scatterbrain", left=1, feature_dim=4)
    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(mixer.mixer.apply(variables, X)[0] ** 2)))
    of_params = jax.device_get(meta.unbox(gradient(mixer.variables))["params"])
    assert not np.any(of_params["random_features"])
    assert np.any(of_params["q"]["kernel"])


def state_of(name, **options):
    return lambda: mixers.make(name, d_model=12, **options).init_state(1, 4)


def call_of(name, argument, value, **options):
    def call():
        mixer = mixers.make(name, d_model=12, **options)
        return jax.eval_shape(lambda: mixer.init(jax.random.key(0), X, **{argument: value}))

    return call


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (state_of("nystrom", causal=False), "causal = False: expected True for a state"),
        (state_of("scatterbrain", causal=False), "causal = False: expected True for a state"),
        (state_of("selective_lookups", causal=False), "causal = False: expected True for a state"),
        (state_of("selected_attention", causal=False), "causal = False: expected True for a state"),
        (state_of("sigmoid_lookups", hard=True), "hard = True: expected False for a state"),
        (call_of("nystrom", "state", "any", causal=False), "state = 'str': expected None with causal"),
        (call_of("nystrom", "segment_ids", IDS, causal=False), "segment_ids = '.*': expected None"),
        (call_of("scatterbrain", "mask", MASK, causal=False), "mask = '.*': expected None"),
        (call_of("sma", "state", "any", hard=True), "state = 'str': expected None with hard = True"),
        (call_of("selective_lookups", "state", None, hard=True), "causal = True: expected False with hard"),
        (call_of("selected_attention", "state", "any", causal=False), "state = 'str': expected None"),
        (call_of("selected_attention", "state", None, order=0), "order = 0: expected at least 1"),
        (call_of("selected_attention", "state", None, selection="some"), "selection = 'some': expected"),
        (call_of("selected_attention", "state", None, share=0.0), "share = 0.0: expected above 0"),
        (call_of("scatterbrain", "state", None, feature_dim=3), "feature_dim = 3: expected an even number"),
        (call_of("sigmoid_lookups", "state", None, lookups=0), "lookups = 0: expected None or at least 1"),
        (call_of("bigbird", "cells", np.zeros((2, 2))), "cells has dtype"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
