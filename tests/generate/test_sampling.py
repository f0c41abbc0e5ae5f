"""Sampling against a brute-force reading of its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from based_jax.generate import Sampler
from based_jax.generate.sampling import candidates, next_tokens, row_keys, step_keys

ROWS, VOCAB = 3, 13

compiled = jax.jit(next_tokens, static_argnames=("vocab_size", "top_k"))
compiled_candidates = jax.jit(candidates, static_argnames="top_k")


class Ambiguous(Exception):
    """The nucleus ends within rounding of a token: either answer is right."""


def brute_force(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """Probabilities over the vocabulary of one row, token by token."""
    order = np.argsort(-logits, kind="stable")[:top_k]
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    weights /= weights.sum()
    kept, mass = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if top_p is not None:
            if abs(mass - top_p) < 1e-5:
                raise Ambiguous
            if mass >= top_p:
                break
        kept.append((token, weight))
        mass += weight
    result = np.zeros(len(logits))
    for token, weight in kept:
        result[token] = weight / mass
    return result


@given(
    seed=st.integers(0, 2**16),
    temperature=st.floats(0.05, 5),
    top_k=st.sampled_from([None, 1, 4, VOCAB - 1, VOCAB + 3]),
    top_p=st.none() | st.floats(0.01, 1),
)
@settings(max_examples=60)
def test_candidates_are_the_definition(seed, temperature, top_k, top_p):
    logits = np.random.default_rng(seed).normal(size=(ROWS, VOCAB)).astype(np.float32) * 2
    scores, ids = compiled_candidates(logits, temperature, top_k=top_k, top_p=top_p)
    try:
        expected = np.stack([brute_force(row.astype(float), temperature, top_k, top_p) for row in logits])
    except Ambiguous:
        reject()
    if ids is None:
        ids = np.broadcast_to(np.arange(VOCAB), (ROWS, VOCAB))
    found = np.full((ROWS, VOCAB), -np.inf)
    np.put_along_axis(found, np.asarray(ids), np.asarray(scores, float), axis=1)
    np.testing.assert_array_equal(np.isfinite(found), expected > 0)
    np.testing.assert_allclose(np.exp(found) / np.exp(found).sum(1, keepdims=True), expected, atol=2e-6)


def test_greedy_is_argmax_and_first_of_equals():
    logits = jnp.array([[0.0, 3.0, 3.0, 1.0], [5.0, 0.0, 0.0, 0.0]])
    assert next_tokens(logits, None, vocab_size=4).tolist() == [1, 0]
    keys = row_keys(jax.random.key(0), 2)
    assert next_tokens(logits, keys, vocab_size=4, temperature=1.0, top_k=1).tolist() == [1, 0]
    assert next_tokens(logits * 1e30, keys, vocab_size=4, temperature=1e-30).tolist()[1] == 0


@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 4}, {"top_p": 0.7}, {"top_k": 6, "top_p": 0.8}],
    ids=lambda o: "-".join(o) or "plain",
)
def test_frequencies_follow_the_probabilities(options):
    draws, temperature = 20_000, 0.7
    logits = np.random.default_rng(0).normal(size=8).astype(np.float32)
    expected = brute_force(logits.astype(float), temperature, options.get("top_k"), options.get("top_p"))
    tokens = compiled(
        jnp.broadcast_to(jnp.asarray(logits), (draws, 8)),
        row_keys(jax.random.key(7), draws), vocab_size=8, temperature=temperature, **options,
    )  # fmt: skip
    counts = np.bincount(np.asarray(tokens), minlength=8)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = ((counts - draws * expected)[possible] ** 2 / (draws * expected[possible])).sum()
    freedom = possible.sum() - 1
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_padded_vocabulary_is_never_sampled(temperature):
    logits = jnp.zeros((500, 16)).at[:, 10:].set(100.0)
    tokens = compiled(logits, row_keys(jax.random.key(0), 500), vocab_size=10, temperature=temperature)
    assert int(tokens.max()) < 10


def test_a_row_does_not_depend_on_the_others():
    logits = jax.random.normal(jax.random.key(0), (6, VOCAB))
    keys = step_keys(row_keys(jax.random.key(1), 6), 3)
    options = {"vocab_size": VOCAB, "temperature": 2.0, "top_p": 0.9}
    together = compiled(logits, keys, **options)
    for rows in ([4], [3, 2, 5]):
        index = jnp.array(rows)
        assert compiled(logits[index], keys[index], **options).tolist() == together[index].tolist()


def test_keys_differ_between_rows_and_steps():
    keys = row_keys(jax.random.key(0), 4)
    drawn = [jax.vmap(jax.random.bits)(step_keys(keys, step)).tolist() for step in range(5)]
    assert len({bits for row in drawn for bits in row}) == 20
    assert (row_keys(keys, 4) == keys).all()
    old_style = jax.random.key_data(jax.random.key(0))
    assert (row_keys(old_style, 4) == keys).all()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1}, {"temperature": float("nan")}, {"temperature": float("inf")},
        {"temperature": "hot"}, {"top_k": 0}, {"top_k": 2.5}, {"top_k": True},
        {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_sampler_names_the_wrong_setting(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"^{name} = {value!r}: expected "):
        Sampler(**options)
