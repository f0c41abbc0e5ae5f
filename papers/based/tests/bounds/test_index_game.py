"""The index game: finite models, the library's mixers, and linear states."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import mixers
from papers.based.bounds import mixer_states
from papers.based.bounds.index_game import Model, last_pairs, play
from papers.based.bounds.recall_bound import best_recall
from papers.check import EXACT
from tests.marks import slow_but

seeds = st.integers(0, 2**32 - 1)
few = st.integers(1, 7)


@given(few, few)
def test_a_window_recalls_the_pairs_in_it(bits, slots):
    game = play(last_pairs(slots), bits)
    lost = max(0, bits - slots)
    assert game.states == 2 ** min(bits, slots)
    assert game.wrong == lost * 2**bits / 2  # of what is gone every other answer
    if lost:
        assert game.collision.index == lost - 1


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


QUICK = {
    "linear_attention": {"feature_dim": 2, "num_heads": 1},
    "long_conv": {},
    "short_conv": {},
    "rwkv_channel_mix": {},
}
"""Played in every run, with options that compile quickly."""

LAST_TOKENS = {"base_conv": 2, "gated_conv": 2, "mlp": 0, "rwkv_channel_mix": 1, "short_conv": 2}
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


@pytest.mark.parametrize("left", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_sliding_window_forgets(left):
    states = mixer_states.run("sliding_window", LENGTH, left=left)
    assert states.distinct == 2 ** (left + 1)
    assert states.collision.index == LENGTH - left - 2
