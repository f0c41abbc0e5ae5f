"""A snapshot is the state after its tokens, whatever the chunks in which they were read."""

import sys

import chex
import numpy as np
import pytest

from based_jax.generate.capacity import with_capacity
from based_jax.generate.engine.pool import read
from based_jax.generate.engine.snapshot import snapshot
from based_jax.models.language_model import LanguageModel
from based_jax.testing import laws
from tests.mixers.test_contract import drawn, runner

TOKENS = list(range(3, 24))
REST = [4, 4, 9, 0, 2]


def assert_close(found, expected):
    """float32 sums in another order: of a few dozen tokens, measured below 1e-5."""
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_text_continues_after_a_snapshot(hybrid, monkeypatch):
    model, params = hybrid.model, hybrid.params
    made = snapshot(model, params, TOKENS, max_length=48)
    whole = snapshot(model, params, TOKENS + REST, max_length=64)
    logits = model.apply(params, whole.hidden, method="unembed")
    assert [int(logits[0, :50].argmax())] == hybrid.greedy(TOKENS + REST, 1)
    padded = np.pad([REST], ((0, 0), (0, 32 - len(REST))))
    state, hidden = read(model, params, with_capacity(model, made.state, 64), padded, len(REST))
    assert_close((state, hidden), (whole.state, whole.hidden))
    monkeypatch.setattr(sys.modules["based_jax.generate.prompt"], "CHUNKS", (4, 16))
    assert_close(snapshot(model, params, TOKENS, max_length=48), made)


def test_errors(hybrid):
    model, params = hybrid.model, hybrid.params
    with pytest.raises(ValueError, match=r"^max_length = 20: expected at least 21, the number of tokens"):
        snapshot(model, params, TOKENS, max_length=20)
    with pytest.raises(ValueError, match=r"^prompt = 50: expected tokens in \[0, 50\)"):
        snapshot(model, params, [50])
    limited = LanguageModel(model.config.replace(max_positions=20))
    with pytest.raises(ValueError, match=r"^tokens = 21: expected at most 20 = max_positions"):
        snapshot(limited, params, TOKENS)


@pytest.mark.parametrize("case", ["attention", "base_conv-long"])
def test_a_state_moves_to_another_capacity(case):
    """A snapshot read with little capacity equals one read with much, there and back."""
    run = runner(case)
    x = drawn(1, 6)
    small, large = (run(x, run.mixer.init_state(2, size))[1] for size in (13, laws.MAX_LENGTH))
    chex.assert_trees_all_equal(with_capacity(run.mixer, small, laws.MAX_LENGTH), large)
    chex.assert_trees_all_equal(with_capacity(run.mixer, large, 13), small)
