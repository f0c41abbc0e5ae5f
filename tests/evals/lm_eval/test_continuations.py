"""Scores of continuations: those of each request alone, however they are batched and what they share."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax.evals.lm_eval import continuations
from based_jax.evals.lm_eval.continuations import Request, score_continuations
from based_jax.mixers import Attention
from based_jax.models.language_model import LanguageModel
from tests.generate.tiny import LENGTH, make_tiny
from tests.marks import slow_but

# Sums of a few float32 log-probabilities of up to 30 nats each: 8 tokens * 30 * 2^-24 * some operations.
TOLERANCE = 1e-4

RNG = np.random.default_rng(0)
HEADER = RNG.integers(0, 50, 18).tolist()


def some(count):
    return RNG.integers(0, 50, count).tolist()


def make_requests():
    """Questions after a common header, of several lengths, with choices of 1, 4 and 7 tokens."""
    requests = [
        Request(context, some(1 + 3 * choice))
        for length in (17, 17, 4)
        for context in [HEADER + some(length)]
        for choice in range(3)
    ]
    first = requests[0]
    return [
        *requests,
        first,  # twice
        Request(first.context, some(1)),  # the same input, another target
        Request([*first.context, *first.continuation], some(2)),  # begins where another one ends
        Request(some(1), some(3)),  # shares nothing
    ]


REQUESTS = make_requests()


@pytest.fixture(scope="module", params=slow_but(["C"], ["C", "A"]))
def tiny(request):
    return make_tiny(request.param)


@pytest.fixture(scope="module")
def attending():
    return make_tiny("A")


@pytest.fixture(scope="module")
def alone(tiny):
    """A request's score by one float64 pass over it."""
    schedule = tiny.model.config.schedule
    with jax.enable_x64(True):
        wide = make_tiny(schedule, dtype="float64")

    def score(request):
        text = [*request.context, *request.continuation]
        with jax.enable_x64(True):
            logits = wide.forward(wide.params, np.array([text + [0] * (LENGTH - len(text))]))[0]
            log_p = np.asarray(jax.nn.log_softmax(logits))
        positions = range(len(request.context) - 1, len(text) - 1)
        best = [int(log_p[position, :50].argmax()) for position in positions]
        return (
            sum(log_p[position, text[position + 1]] for position in positions),
            best == list(request.continuation),
            best,
        )

    return score


def scores(tiny, requests, **options):
    found = dict(score_continuations(tiny.model, tiny.params, requests, **options))
    assert sorted(found) == list(range(len(requests)))
    return [found[number] for number in range(len(requests))]


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_each_request_as_if_alone(tiny, alone, batch_size):
    # One whose choice is what the model would say.
    likely = Request(REQUESTS[0].context, alone(REQUESTS[0])[2])
    requests = [*REQUESTS, likely]
    found = scores(tiny, requests, batch_size=batch_size)
    for request, score in zip(requests, found, strict=True):
        log_prob, greedy, _ = alone(request)
        assert score.log_prob == pytest.approx(log_prob, abs=TOLERANCE)
        assert score.greedy == greedy
    assert found[-1].greedy


@pytest.mark.slow
@given(st.data())
@settings(max_examples=6)
def test_sharing_changes_nothing(attending, data):
    cuts = st.tuples(st.integers(15, len(HEADER)), st.lists(st.integers(0, 2), max_size=3), st.integers(1, 6))
    requests = [
        Request([*HEADER[:cut], *middle], HEADER[-count:])
        for cut, middle, count in data.draw(st.lists(cuts, min_size=1, max_size=6))
    ]
    together = scores(attending, requests, batch_size=4)
    for request, one in zip(requests, together, strict=True):
        (apart,) = scores(attending, [request], batch_size=4)
        assert one.log_prob == pytest.approx(apart.log_prob, abs=TOLERANCE)


@pytest.fixture
def calls(monkeypatch):
    """Tokens of the rows of each call of the model."""
    sizes, read = [], continuations._read

    def record(model, params, tokens, mask, state):
        sizes.append(mask.sum(axis=1).tolist())
        return read(model, params, tokens, mask, state)

    monkeypatch.setattr(continuations, "_read", record)
    return sizes


def test_what_is_shared_is_read_once(attending, calls):
    scores(attending, REQUESTS[:6], batch_size=4)
    # The header; two questions (and two rows to fill up: 4 are a batch); choices but for their last tokens.
    assert calls == [[18], [17] * 4, [6, 6, 3, 3]]


@pytest.mark.slow
def test_models_without_states_are_passed_over_whole(attending, monkeypatch):
    expected = [score.log_prob for score in scores(attending, REQUESTS[:3], batch_size=4)]
    monkeypatch.setattr(Attention, "stateful", False)
    monkeypatch.setattr(LanguageModel, "init_state", None)
    found = [score.log_prob for score in scores(attending, REQUESTS[:3], batch_size=4)]
    assert found == pytest.approx(expected, abs=TOLERANCE)


def test_wrong_requests_are_named(attending):
    def message(*requests, **options):
        with pytest.raises(ValueError, match="expected") as error:
            list(score_continuations(attending.model, attending.params, requests, **options))
        return str(error.value)

    assert message(Request([], [1])).startswith("request 0, context = []: expected at least one token")
    assert message(REQUESTS[0], Request([1], [])).startswith("request 1, continuation = []: expected")
    assert message(Request([1], [50])) == "tokenizer = 'token 50': expected tokens below 50"
    assert message(REQUESTS[0], batch_size=0) == "batch_size = 0: expected at least 1"


def test_models_that_cannot_score_are_refused(attending):
    config = attending.model.config
    both = LanguageModel(config.with_mixer("nystrom", [0], causal=False))
    with pytest.raises(ValueError, match="layer 0, nystrom': expected causal mixers only"):
        list(score_continuations(both, None, REQUESTS))
    short = LanguageModel(config.replace(max_positions=8))
    with pytest.raises(
        ValueError, match="tokens of a request = 9: expected at most 8, the model's longest text"
    ):
        list(score_continuations(short, None, [Request([1] * 8, [1, 2])]))
    broken = jax.tree.map(lambda leaf: leaf * np.nan, attending.params)
    with pytest.raises(ValueError, match="expected finite losses"):
        list(score_continuations(attending.model, broken, REQUESTS[:1], batch_size=1))
