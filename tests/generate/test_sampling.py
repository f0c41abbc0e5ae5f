"""Sampling against a brute-force reading of its definition."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from based_jax.generate import Sampler
from based_jax.generate.sampling import Counts, adjusted, candidates, choose, row_keys, row_settings

ROWS, VOCAB = 3, 13

compiled = jax.jit(choose, static_argnames=("vocab_size", "top_logprobs"))
compiled_candidates, compiled_adjusted = jax.jit(candidates), jax.jit(adjusted)


class Ambiguous(Exception):
    """A cut is within rounding of a token: either answer is right."""


def brute_force(logits: np.ndarray, sampler: Sampler) -> np.ndarray:
    """Probabilities over the vocabulary of one row, token by token."""
    order = np.argsort(-logits, kind="stable")[: sampler.top_k]
    weights = np.exp((logits[order] - logits[order[0]]) / sampler.temperature)
    weights /= weights.sum()
    least = (sampler.min_p or 0) * weights[0]
    kept, mass = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if sampler.top_p is not None:
            if abs(mass - sampler.top_p) < 1e-5 and sampler.top_p < 1:
                raise Ambiguous
            if mass >= sampler.top_p and sampler.top_p < 1:
                break
        if sampler.min_p is not None and abs(weight / least - 1) < 1e-5 and token != order[0]:
            raise Ambiguous
        if weight >= least:
            kept.append((token, weight))
        mass += weight
    result = np.zeros(len(logits))
    for token, weight in kept:
        result[token] = weight / sum(weight for _, weight in kept)
    return result


def same_for_all(sampler: Sampler, rows: int, seed: int = 0):
    return row_settings([sampler] * rows, row_keys(jax.random.key(seed), rows))


SAMPLERS = st.builds(
    Sampler,
    temperature=st.floats(0.05, 5),
    top_k=st.sampled_from([None, 1, 4, VOCAB - 1, VOCAB + 3, 10**30]),
    top_p=st.none() | st.floats(0.01, 1),
    min_p=st.none() | st.floats(0.01, 1),
)


@given(seed=st.integers(0, 2**16), samplers=st.lists(SAMPLERS, min_size=ROWS, max_size=ROWS))
@settings(max_examples=100)
def test_candidates_are_the_definition(seed, samplers):
    logits = np.random.default_rng(seed).normal(size=(ROWS, VOCAB)).astype(np.float32) * 2
    scores = compiled_candidates(logits, row_settings(samplers, row_keys(jax.random.key(0), ROWS)))
    try:
        pairs = zip(logits, samplers, strict=True)
        expected = np.stack([brute_force(row.astype(float), sampler) for row, sampler in pairs])
    except Ambiguous:
        reject()
    found = np.asarray(scores, float)
    np.testing.assert_array_equal(np.isfinite(found), expected > 0)
    np.testing.assert_allclose(np.exp(found) / np.exp(found).sum(1, keepdims=True), expected, atol=3e-6)


@jax.jit
def counted(prompt, real, made, active):
    counts = Counts.of_prompt(prompt, real, VOCAB)
    for token in made:
        counts = counts.add(jnp.full((ROWS,), token), active)
    return counts


@given(
    seed=st.integers(0, 2**16),
    penalties=st.tuples(st.floats(0.5, 3), st.floats(-2, 2), st.floats(-2, 2)),
)
def test_penalties_are_the_definition(seed, penalties):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(ROWS, VOCAB + 3)).astype(np.float32) * 2
    prompt, made = rng.integers(VOCAB, size=(ROWS, 6)), rng.integers(VOCAB, size=9)
    lengths = np.array([0, 2, 6])
    active = np.array([True, False, True])
    counts = counted(prompt, np.arange(6) < lengths[:, None], made, active)

    repetition, presence, frequency = penalties
    expected = []
    for row in range(ROWS):
        output = list(made) if active[row] else []
        scores = logits[row, :VOCAB].astype(float)
        for token in {*prompt[row, : lengths[row]], *output}:
            scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
        for token in set(output):
            scores[token] -= presence + frequency * output.count(token)
        expected.append(scores)
    sampler = Sampler(0.0, None, None, None, *penalties)
    own_settings, steps = row_settings([sampler] * ROWS, None), np.zeros(ROWS, int)
    found = compiled_adjusted(logits[:, :VOCAB], own_settings, counts)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    chosen = compiled(logits, own_settings, steps, counts, vocab_size=VOCAB)
    for scores, token in zip(expected, chosen.token.tolist(), strict=True):
        assert scores[token] >= scores.max() - 1e-5
    log_sum = np.log(np.exp(logits[:, :VOCAB].astype(float)).sum(axis=1))
    own = logits[np.arange(ROWS), chosen.token] - log_sum
    np.testing.assert_allclose(chosen.logprob, own, atol=1e-5)


def test_greedy_is_argmax_and_first_of_equals():
    logits = np.array([[0, 3, 3, 1], [5, 0, 0, 0]], np.float32)
    chosen = compiled(logits, same_for_all(Sampler(), 2), np.zeros(2, int), vocab_size=4)
    assert chosen.token.tolist() == [1, 0]
    for sampler in (Sampler(1.0, top_k=1), Sampler(1.0, top_p=1e-9), Sampler(1.0, min_p=1.0)):
        scores = compiled_candidates(logits, same_for_all(sampler, 2))
        assert np.isfinite(scores).tolist() == [[False, True, True, False], [True, False, False, False]]


@pytest.mark.parametrize(("penalties", "token"), [((1e-20, -1e20, -1e20), 1), ((1e20, 1e20, 10**20), 2)])
def test_no_penalty_overflows(penalties, token):
    logits = np.array([[-3.0, 5.0, 5.5, -1.0]] * 2, np.float32)
    counts = Counts(*np.array([[[1, 1, 0, 0]] * 2, [[0, 1, 0, 1]] * 2], np.int32) * 1000)
    samplers = [Sampler(temperature, None, None, None, *penalties) for temperature in (0.0, 1.0)]
    settings = row_settings(samplers, row_keys(jax.random.key(0), 2))
    chosen = compiled(logits, settings, np.zeros(2, int), counts, vocab_size=4)
    assert chosen.token.tolist() == [token, token]


def test_no_temperature_overflows():
    for temperature in [1e-300, 1e-45, 1e-38, 1e-30, 1e30, 1e300]:
        logits = np.array([[1e30, 0.0, -1e30], [0.0, 1e-30, 2.0], [-3.0, -3.0, -3.0]], np.float32)
        limited = Sampler(temperature, top_k=2, top_p=0.9, min_p=0.01)
        for sampler in (Sampler(temperature), limited):
            scores = np.asarray(compiled_candidates(logits, same_for_all(sampler, 3)))
            assert np.isfinite(scores.max(axis=1)).all()
            assert not np.isnan(scores).any()
            chosen = compiled(logits, same_for_all(sampler, 3), np.zeros(3, int), vocab_size=3)
            if temperature < 1:
                assert chosen.token.tolist()[:2] == [0, 2]


@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 6, "top_p": 0.8, "min_p": 0.1}],
    ids=lambda o: "-".join(o) or "plain",
)
def test_frequencies_follow_the_probabilities(options):
    draws, sampler = 20_000, Sampler(0.7, **options)
    logits = np.random.default_rng(0).normal(size=8).astype(np.float32)
    expected = brute_force(logits.astype(float), sampler)
    rows = np.broadcast_to(logits, (draws, 8))
    tokens = compiled(rows, same_for_all(sampler, draws, 7), np.zeros(draws, int), vocab_size=8).token
    counts = np.bincount(np.asarray(tokens), minlength=8)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = ((counts - draws * expected)[possible] ** 2 / (draws * expected[possible])).sum()
    freedom = possible.sum() - 1
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padded_vocabulary_is_never_sampled(temperature):
    logits = np.where(np.arange(16) < 10, 0, np.full((500, 16), 100, np.float32))
    chosen = compiled(logits, same_for_all(Sampler(temperature), 500), np.zeros(500, int), vocab_size=10)
    assert int(chosen.token.max()) < 10
    np.testing.assert_allclose(chosen.logprob, -np.log(10), rtol=1e-6)


def test_the_most_likely_tokens_come_with_their_log_probabilities():
    logits = np.random.default_rng(0).normal(size=(ROWS, VOCAB + 3)).astype(np.float32) * 3
    chosen = compiled(
        logits, same_for_all(Sampler(5.0), ROWS), np.zeros(ROWS, int), vocab_size=VOCAB, top_logprobs=4
    )
    expected = logits[:, :VOCAB] - np.log(np.exp(logits[:, :VOCAB]).sum(axis=1, keepdims=True))
    assert chosen.top_ids.tolist() == np.argsort(-expected)[:, :4].tolist()
    np.testing.assert_allclose(chosen.top_logprobs, -np.sort(-expected)[:, :4], atol=1e-6)
    np.testing.assert_allclose(chosen.logprob, expected[range(ROWS), chosen.token], atol=1e-6)
    assert chosen.logprob.dtype == chosen.top_logprobs.dtype == jnp.float32
    arguments = logits, same_for_all(Sampler(), ROWS), np.zeros(ROWS, int)
    plain = jax.eval_shape(functools.partial(choose, vocab_size=VOCAB), *arguments)
    assert plain.top_ids.shape == plain.top_logprobs.shape == (ROWS, 0)


def test_settings_are_arguments_of_one_program():
    chex.clear_trace_counter()
    program = jax.jit(chex.assert_max_traces(lambda *arguments: choose(*arguments, vocab_size=VOCAB), n=1))
    logits, steps = np.zeros((ROWS, VOCAB), np.float32), np.zeros(ROWS, int)
    for sampler in (Sampler(), Sampler(1.0), Sampler(0.3, 5, 0.9, 0.1, 1.2, 0.5, 0.5)):
        program(logits, same_for_all(sampler, ROWS), steps)


@given(seed=st.integers(0, 2**16))
@settings(max_examples=10)
def test_without_keys_every_row_is_greedy(seed):
    logits, steps = np.random.default_rng(seed).normal(size=(ROWS, VOCAB)), np.zeros(ROWS, int)
    greedy = row_settings([Sampler()] * ROWS, None)
    with_keys = compiled(logits, same_for_all(Sampler(), ROWS), steps, vocab_size=VOCAB)
    chex.assert_trees_all_equal(compiled(logits, greedy, steps, vocab_size=VOCAB), with_keys)


def test_keys_differ_between_rows_and_steps():
    keys = row_keys(jax.random.key(0), 4)
    flat = np.zeros((4, 1000), np.float32)
    tokens = [
        compiled(flat, row_settings([Sampler(1.0)] * 4, keys), np.full(4, step), vocab_size=1000).token
        for step in range(5)
    ]
    assert len({token for row in tokens for token in row.tolist()}) >= 18  # of 20 draws, 0.2 pairs are equal
    assert (row_keys(keys, 4) == keys).all()
    old_style = jax.random.key_data(jax.random.key(0))
    assert (row_keys(old_style, 4) == keys).all()


def test_sampler_names_the_wrong_setting():
    nan, infinity, huge = float("nan"), float("inf"), 10**400
    for name, values in {
        "temperature": (-0.1, nan, infinity, "hot", None, huge),
        "top_k": (0, 2.5, True),
        "top_p": (0.0, 1.1, nan),
        "min_p": (0.0, 1.5),
        "repetition_penalty": (0.0, infinity, True, 1e-308, huge),
        "presence_penalty": (nan,),
        "frequency_penalty": ("much", -huge),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=f"^{name} = {value!r}: expected "):
                Sampler(**{name: value})
