"""A snapshot is the state after its tokens, however they were read in chunks; a cache keeps some of them."""

import sys

import chex
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.generate import PrefixCache, Snapshot, snapshot
from based_jax.generate.states import with_capacity
from based_jax.models.language_model import LanguageModel
from based_jax.testing import laws
from tests.mixers.test_contract import drawn, runner

TOKENS = list(range(3, 24))


@pytest.mark.release
def test_a_snapshot_does_not_depend_on_the_chunks(hybrid, monkeypatch):
    model, params = hybrid.model, hybrid.params
    made = snapshot(model, params, TOKENS, max_length=48)
    logits = model.apply(params, made.hidden, method="unembed")
    assert [int(logits[0, :50].argmax())] == hybrid.greedy(TOKENS, 1)
    monkeypatch.setattr(sys.modules["based_jax.generate.prompt"], "CHUNKS", (4, 16))
    # float32 sums in another order: of a few dozen tokens, measured below 1e-5
    chex.assert_trees_all_close(snapshot(model, params, TOKENS, max_length=48), made, rtol=1e-4, atol=1e-4)


def test_errors(hybrid):
    model, params = hybrid.model, hybrid.params
    limited = LanguageModel(model.config.replace(max_positions=20))
    two_rows = Snapshot(np.zeros(1), np.zeros((2, 1)), np.zeros((1, 1)))
    for call, message in [
        (lambda: snapshot(model, params, TOKENS, max_length=20), "max_length = 20: expected at least 21"),
        (lambda: snapshot(model, params, [50]), r"prompt = 50: expected tokens in \[0, 50\)"),
        (lambda: snapshot(limited, params, TOKENS), "tokens = 21: expected at most 20, the model's"),
        (lambda: PrefixCache(0), "max_bytes = 0: expected an integer, at least 1"),
        (lambda: PrefixCache(1, 0), "every = 0: expected an integer, at least 1"),
        (lambda: PrefixCache(True), "max_bytes = True: expected an integer"),
        (lambda: PrefixCache(10).put(two_rows), "state = '2 rows': expected one row"),
    ]:
        with pytest.raises(ValueError, match=f"^{message}"):
            call()
    assert PrefixCache(np.int64(9), np.int32(2)).every == 2
    assert snapshot(model, params, TOKENS, max_length=np.int64(48)).tokens.tolist() == TOKENS


@pytest.mark.release
@pytest.mark.parametrize("case", ["attention", "base_conv-long"])
def test_a_state_moves_to_another_capacity(case):
    """A text read with little capacity is as one read with much, there and back."""
    run = runner(case)
    x = drawn(1, 6)
    small, large = (run(x, run.mixer.init_state(2, size))[1] for size in (13, laws.MAX_LENGTH))
    chex.assert_trees_all_equal(with_capacity(run.mixer, small, laws.MAX_LENGTH), large)
    chex.assert_trees_all_equal(with_capacity(run.mixer, large, 13), small)


EVERY = 2
# Few tokens, so that prefixes are shared.
TEXTS = st.lists(st.integers(0, 1), max_size=8)
CALLS = st.lists(st.one_of(TEXTS, st.tuples(TEXTS, st.integers(2, 9))), max_size=30)


@given(st.integers(1, 20), CALLS)
def test_a_cache_is_a_list_in_order_of_use(max_bytes, calls):
    cache, kept = PrefixCache(max_bytes, every=EVERY), []
    for mark, call in enumerate(calls):
        if isinstance(call, tuple):
            tokens, size = call
            state, hidden = np.full((1, size - 1), mark, np.int8), np.zeros((1, 1), np.int8)
            fits = bool(tokens) and len(tokens) % EVERY == 0 and size <= max_bytes
            assert cache.put(Snapshot(np.array(tokens, np.int32), state, hidden)) == fits
            if fits:
                kept = [entry for entry in kept if entry[0] != tokens] + [(tokens, mark, size)]
                while sum(size for *_, size in kept) > max_bytes:
                    kept.pop(0)
        else:
            found = max((e for e in kept if call[: len(e[0])] == e[0]), key=lambda e: len(e[0]), default=None)
            hit = cache.find(np.array(call, np.int64))
            assert (hit and (hit.tokens.tolist(), hit.state[0, 0])) == (found and found[:2])
            kept = [entry for entry in kept if entry is not found] + [found] * (found is not None)
        assert cache.bytes == sum(size for *_, size in kept) <= max_bytes
        assert len(cache) == len(kept)
