"""The index game: finite models, the library's mixers, and linear states."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import mixers
from papers.based.bounds import mixer_states
from papers.based.bounds.index_game import (
    Collision,
    Model,
    bit_per_key,
    collide,
    hashed,
    last_pairs,
    play,
)
from papers.based.bounds.linear_state import (
    delta_rule,
    orthonormal,
    outer_products,
    squared_error,
)
from papers.based.bounds.recall_bound import best_recall
from papers.check import EXACT
from tests.marks import slow_but

seeds = st.integers(0, 2**32 - 1)
few = st.integers(1, 7)


@given(few)
def test_one_bit_for_each_key_recalls_all(bits):
    game = play(bit_per_key(bits), bits)
    assert (game.states, game.wrong, game.collision) == (2**bits, 0, None)


@given(few, few)
def test_a_window_recalls_the_pairs_in_it(bits, slots):
    game = play(last_pairs(slots), bits)
    lost = max(0, bits - slots)
    assert game.states == 2 ** min(bits, slots)
    assert game.wrong == lost * 2**bits / 2  # of what is gone every other answer
    if lost:
        assert game.collision.index == lost - 1


@given(few, few)
def test_keys_that_share_a_slot_collide(bits, slots):
    game = play(hashed(slots), bits)
    assert game.states == 2 ** min(bits, slots)
    assert (game.collision is None) == (game.wrong == 0) == (slots >= bits)


@given(few, st.integers(1, 200), seeds)
def test_too_few_states_answer_wrongly(bits, states, seed):
    """Any table of steps with any answers."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(0, states, size=(states, bits, 2))
    answers = rng.integers(0, 2, size=(states, bits))
    model = Model(0, lambda *at: int(steps[at]), lambda *at: int(answers[at]))
    game = play(model, bits)
    assert game.states <= states
    assert (game.states == 2**bits) == (game.collision is None)
    if game.collision is not None:
        assert game.wrong > 0
        assert game.collision.first[game.collision.index] != game.collision.second[game.collision.index]
    assert 1 - game.wrong / (bits * 2**bits) <= best_recall(np.log2(game.states), bits, 2) + EXACT


def test_a_collision_is_where_the_strings_differ():
    assert collide((0, 1, 0), (0, 0, 1)) == Collision((0, 1, 0), (0, 0, 1), 1)


QUICK = {
    "linear_attention": {"feature_dim": 2, "num_heads": 1},
    "long_conv": {},
    "short_conv": {},
    "rwkv_channel_mix": {},
}
"""Played in every run, with options that compile quickly."""

LAST_TOKENS = {"base_conv": 2, "gated_conv": 2, "rwkv_channel_mix": 1, "short_conv": 2}
"""Mixers whose state is their last tokens, by default so many."""

LENGTH = 6


@pytest.mark.parametrize("name", slow_but(QUICK, mixers.names()))
def test_a_state_that_recalls_n_bits_has_n_bits(name):
    states = mixer_states.run(name, LENGTH, **QUICK.get(name, {}))
    kept = LAST_TOKENS.get(name, LENGTH)
    assert states.distinct == 2**kept
    assert states.recalls == (states.collision is None) == (kept == LENGTH)
    if states.recalls:
        assert states.size >= LENGTH
    else:
        assert states.bits is states.size is None
        assert states.collision.index == LENGTH - kept - 1  # the last token that is gone


@pytest.mark.slow
@pytest.mark.parametrize(("length", "bits"), [(4, 9), (8, 13), (10, 20)])
def test_one_number_takes_a_bit_for_each_of_the_string(length, bits):
    states = mixer_states.run("gla", length, d_model=1)
    assert states.numbers == 1
    assert states.bits == states.size == bits >= length


@pytest.mark.slow
def test_a_number_of_20_bits_may_be_too_little():
    """Two numbers could tell 2^40 strings apart, those of RWKV-7 forget."""
    states = mixer_states.run("rwkv7", 8, d_model=1)
    assert states.numbers == 2
    assert not states.recalls


@pytest.mark.parametrize("left", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_sliding_window_forgets(left):
    states = mixer_states.run("sliding_window", LENGTH, left=left)
    assert states.distinct == 2 ** (left + 1)
    assert states.collision.index == LENGTH - left - 2


def test_rounding_merges_states():
    numbers = np.array([[0.0], [0.3], [0.7], [1.0]])
    assert [mixer_states.distinct(numbers, bits)[0] for bits in (1, 2, 3)] == [2, 4, 4]
    assert mixer_states.distinct(numbers, 1)[1].tolist() == [0, 0, 2, 2]


sizes = st.integers(1, 9)


@given(sizes, sizes, seeds)
def test_orthonormal_keys_are_stored_exactly(pairs, width, seed):
    rng = np.random.default_rng(seed)
    pairs = min(pairs, width)
    keys, values = orthonormal(rng, pairs, width), rng.normal(size=(pairs, 3))
    np.testing.assert_allclose(keys @ keys.T, np.eye(pairs), atol=EXACT)
    for write in (outer_products, delta_rule):
        assert squared_error(write(keys, values), keys, values) <= EXACT


@given(sizes, sizes, seeds)
def test_no_linear_state_stores_more_pairs_than_it_has_rows(pairs, width, seed):
    rng = np.random.default_rng(seed)
    keys, values = orthonormal(rng, pairs, width), np.eye(pairs)
    floor = max(0, pairs - width)
    best = np.linalg.lstsq(keys, values, rcond=None)[0]
    assert abs(squared_error(best, keys, values) - floor) <= EXACT
    states = [outer_products(keys, values), delta_rule(keys, values), rng.normal(size=(width, pairs))]
    for state in states:
        assert squared_error(state, keys, values) >= floor - EXACT


@given(sizes, sizes, seeds)
def test_the_delta_rule_keeps_the_newest_pair(pairs, width, seed):
    rng = np.random.default_rng(seed)
    keys, values = orthonormal(rng, pairs, width), rng.normal(size=(pairs, 2))
    np.testing.assert_allclose(keys[-1] @ delta_rule(keys, values), values[-1], atol=EXACT)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: play(bit_per_key(1), 0), "bits = 0"),
        (lambda: mixer_states.run("short_conv", 0), "length = 0"),
        (lambda: outer_products(np.eye(2), np.eye(3)), "values has shape"),
        (lambda: delta_rule(np.eye(2), np.eye(3)), "values has shape"),
        (lambda: orthonormal(np.random.default_rng(0), 0, 1), "pairs = 0"),
        (lambda: orthonormal(np.random.default_rng(0), 1, 0), "width = 0"),
    ],
)
def test_arguments_out_of_range_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
