"""Input-dependent filters: against loops, and the laws, which here need token ids."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import meta

from based_jax import mixers
from based_jax.testing import laws
from tests.ops import oracles
from tests.tolerances import FLOAT32, assert_close

X = laws.inputs(2, 13, 4, 0)
TOKENS = np.random.default_rng(0).integers(0, 6, (2, 13)).astype(np.int32)
IDS = np.repeat([[0, 1]], [5, 8], axis=1).repeat(2, axis=0).astype(np.int32)
MASK = np.arange(13) < np.array([[13], [7]])


def run(**options):
    return laws.Runner(mixers.make("input_conv", d_model=4, **options))


def gates(runner):
    params = jax.tree.map(np.asarray, meta.unbox(runner.variables))["params"]
    return X @ params["projection"]["kernel"] + params["projection"]["bias"]


def by_hand(ids, shorter=0):
    """sum over the distances, less `shorter`, that the tokens up to i have repeated at."""
    y = np.zeros(X.shape)
    for row in range(2):
        starts = oracles.segment_starts(ids[row])
        for i in range(13):
            begin, tokens = starts[i], TOKENS[row]
            for s in range(1, i - begin + 1):
                if any(tokens[t] == tokens[t - s] for t in range(begin + s, i + 1)):
                    y[row, i] += X[row, i - s + shorter]
    return y


def test_the_programmatic_filter_is_its_equation():
    runner = run()
    for ids in (np.zeros_like(IDS), IDS):
        y, _ = runner(X, tokens=TOKENS, segment_ids=ids)
        assert_close(y, gates(runner) * by_hand(ids), FLOAT32)
    assert_close(runner(X, tokens=TOKENS)[0], gates(runner) * by_hand(np.zeros_like(IDS)), FLOAT32)
    after = run(copy_next=True)
    y, _ = after(X, tokens=TOKENS, segment_ids=IDS)
    assert_close(y, gates(after) * by_hand(IDS, shorter=1), FLOAT32)


def test_the_programmatic_filter_obeys_the_laws():
    runner = run(copy_next=True)
    laws.split_law(runner, X, [6, 1, 6], tokens=TOKENS)
    laws.split_law(runner, X, [1, 6, 6], tokens=TOKENS, segment_ids=IDS)
    whole = laws.packed(runner, X, tokens=TOKENS)
    later = TOKENS.copy()
    later[:, 9:] += 1
    moved = laws.packed(runner, X, tokens=later)
    np.testing.assert_array_equal(moved[:, :9], whole[:, :9])
    garbage = np.where(MASK[..., None], X, 1e3)
    padded, state = laws.continued(runner, garbage, runner.fresh(2), tokens=TOKENS, mask=MASK)
    assert_close(np.where(MASK[..., None], padded, 0), np.where(MASK[..., None], whole, 0), FLOAT32)
    assert state.stream.length.tolist() == [13, 7]
    x, tokens = (np.roll(array, -7, axis=1) for array in (X, TOKENS))
    rest, _ = laws.continued(runner, x, state, tokens=tokens, mask=np.arange(13) < [[0], [6]])
    assert_close(rest[1, :6], whole[1, 7:], FLOAT32)


def test_too_long_a_text_is_nan_under_jit():
    runner = run()
    y, _ = runner(X, runner.mixer.init_state(2, 12), tokens=TOKENS)
    assert np.all(np.isnan(y))


def test_the_autocorrelation_picks_the_strongest_distances():
    runner = run(filter="autocorrelation", lags=3, width=2)
    params = jax.tree.map(np.asarray, meta.unbox(runner.variables))["params"]
    p = X @ params["comparison"]["kernel"]
    for context, lengths in (({}, (13, 13)), ({"mask": MASK}, (13, 7))):
        y, _ = runner(X, **context)
        for row, length in enumerate(lengths):
            sums = [np.sum(p[row, s:length] * p[row, : length - s]) / length for s in range(1, length)]
            lags = np.argsort(-np.array(sums))[:3] + 1
            h = np.exp([sums[s - 1] for s in lags])
            shifted = [np.concatenate([np.zeros((s, 4)), X[row, : 13 - s]]) for s in lags]
            expected = gates(runner)[row] * np.einsum("s,snd->nd", h / h.sum(), shifted)
            assert_close(y[row, :length], expected[:length], FLOAT32)


@pytest.mark.release
def test_the_comparison_learns_and_short_rows_work():
    runner = run(filter="autocorrelation", lags=3)
    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(runner.mixer.apply(variables, X)[0] ** 2)))
    of_params = meta.unbox(gradient(runner.variables))["params"]
    assert np.any(of_params["comparison"]["kernel"])
    chex.assert_tree_all_finite(of_params)
    for length in (1, 2):
        assert np.all(np.isfinite(runner(X[:, :length])[0]))


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"tokens = None: expected ids \(B, N\)"):
        run()(X)
    with pytest.raises(ValueError, match="max_length = None: expected the number of tokens"):
        run().mixer.init_state(1)
    with pytest.raises(ValueError, match="filter = 'autocorrelation': expected 'programmatic' for a state"):
        run(filter="autocorrelation").mixer.init_state(1, 4)
