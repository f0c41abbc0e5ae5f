"""The engine answers as `generate` does, one request alone, whatever else goes on."""

import contextlib

import jax
import numpy as np
import pytest

from based_jax.generate import Engine, Event, Full, PrefixCache, Request, Sampler
from based_jax.generate.states import token_limit
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.models.language_model import LanguageModel
from tests.arrays import array
from tests.generate.answers import ENGINE, check
from tests.generate.tiny import MIXERS, forbidding

PROMPTS = [[7], [3, 1], [4, 4, 9, 0, 2, 30, 49, 8], list(range(10, 26)), list(range(3, 45, 2))]
STEPS = 10


@pytest.fixture
def engine(wide, x64):
    return Engine(wide.model, wide.params, **ENGINE)


@pytest.mark.slow
def test_no_request_waits_for_a_compilation_after_the_warm_up(engine):
    """First, since it compiles the programs that the other tests use."""
    engine.warm_up()
    with compilations() as compiled:
        engine.run([Request(prompt, STEPS) for prompt in PROMPTS])
        engine.run([Request([1], 5, Sampler(1.0, frequency_penalty=0.5)), Request([2], 5, logprobs=3)])
        engine.run([Request([1] * 9, 0, logprobs=1, prompt_logprobs=True)])
        ticket = engine.submit(Request([1], 5))
        engine.step()
        assert engine.cancel(ticket)
        engine.step()
        assert compiled == []


@contextlib.contextmanager
def compilations():
    """The seconds of each compilation, those of mere transfers left out."""
    seconds = []

    def note(event, duration, fun_name="", **_):
        if event == "/jax/core/compile/backend_compile_duration" and fun_name != "jit(stage)":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_stops(wide, engine):
    free = engine.run([Request(prompt, STEPS) for prompt in PROMPTS])
    requests = [
        Request(PROMPTS[0], STEPS, stop_tokens=[free[0].tokens[0]]),
        Request(PROMPTS[1], STEPS, stop_tokens=free[1].tokens[3:4]),
        Request(PROMPTS[2], STEPS, stop_tokens=[49, *free[2].tokens[-1:]]),
        Request(PROMPTS[3], 1),
        Request(PROMPTS[4], STEPS, Sampler(0.8, top_p=0.9), seed=2**32 - 1, stop_tokens=range(8)),
    ]
    with forbidding():
        answers = Engine(wide.model, wide.params, **ENGINE).run(requests)
    check(wide, requests, answers)
    assert answers[0] == ((), (), "stop", (), None)
    assert [answer.finish for answer in answers[1:4]] == ["stop", "stop", "length"]


def test_penalties_and_logprobs_beside_a_row_without_penalties(wide, engine):
    sampler = Sampler(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    requests = [Request(PROMPTS[2], STEPS, sampler, logprobs=5), Request(PROMPTS[2], STEPS, logprobs=0)]
    answers = engine.run(requests)
    check(wide, requests, answers)
    assert answers[0].tokens != answers[1].tokens
    assert [item.token for item in answers[1].logprobs] == list(answers[1].tokens)


def test_log_probabilities_of_prompts(wide, x64):
    """Of prompts shorter and longer than a chunk, whatever is cached; with no token made, and with some."""
    cache = PrefixCache(max_bytes=1 << 20, every=8)
    engine = Engine(wide.model, wide.params, **ENGINE, prefix_cache=cache)
    options = {"logprobs": 2, "prompt_logprobs": True}
    requests = [Request(prompt, new, **options) for prompt in PROMPTS for new in (0, 3)]
    (plain,) = engine.run([Request(PROMPTS[4], 1)])  # a prefix of it is cached
    requests += [Request(PROMPTS[1], 5, stop_tokens=plain.tokens, **options), Request(PROMPTS[3], 0)]
    answers = engine.run(requests)
    check(wide, requests, answers)
    assert [len(answer.tokens) for answer in answers[:4]] == [0, 3, 0, 3]
    assert answers[-1] == ((), (), "length", (), None)
    stopped = engine.run([Request(PROMPTS[4], 5, stop_tokens=plain.tokens, **options)])
    check(wide, [Request(PROMPTS[4], 5, stop_tokens=plain.tokens, **options)], stopped)
    assert stopped[0].end.token == plain.tokens[0]


def test_cancelled_wherever_they_are(engine):
    running, reading, waiting, last = (
        engine.submit(Request(prompt, 30)) for prompt in ([1], [2] * 17, [3] * 17, [4])
    )
    engine.step()
    assert engine.stats()[:4] == (2, 1, 1, 0)  # waiting, prefilling, running, free
    for count, ticket in enumerate((waiting, reading, running), start=1):
        assert engine.cancel(ticket)
        assert not engine.cancel(ticket)
        assert engine.stats().cancelled == count
    assert engine.stats()[:4] == (1, 0, 0, 2)
    events = engine.step()
    assert [event for event in events if event.ticket != last] == [
        Event(ticket, (), (), "cancelled") for ticket in (waiting, reading, running)
    ]
    assert engine.cancel(last)
    assert not engine.idle, "the last event is to come"
    assert engine.step() == [Event(last, (), (), "cancelled")]
    assert engine.idle
    assert engine.step() == []
    assert not engine.cancel(last + 1)


def test_a_long_prompt_does_not_stop_the_others(engine):
    short = engine.submit(Request([1], 40))
    engine.step()
    engine.submit(Request([2] * 40, 5))
    for _ in range(4):
        assert {event.ticket for event in engine.step()} == {short}
        assert engine.stats().prefilling == 1
    assert engine.stats().prefilled_tokens == 1 + 4 * 8
    engine.step()
    assert engine.stats().running == 2


def test_the_pool_is_as_large_as_what_runs(engine):
    assert engine.stats().rows == 1
    for count, new in ((1, 40), (2, 4)):
        engine.submit(Request([count], new))
        engine.step()
        assert engine.stats().rows == engine.stats().running == count
    while engine.stats().finished < 1:
        engine.step()
    engine.step()
    assert engine.stats().rows == engine.stats().running == 1
    while not engine.idle:
        engine.step()
    assert engine.stats().rows == 1


def test_a_full_queue_and_bad_requests_leave_the_engine_as_it_was(wide, x64):
    engine = Engine(wide.model, wide.params, **ENGINE, max_waiting=2)
    first = [engine.submit(Request([1, 2], 3)) for _ in range(2)]
    with pytest.raises(Full, match=r"^max_waiting = 2 requests wait: try again later"):
        engine.submit(Request([3], 3))
    for request, message in WRONG:
        with pytest.raises(ValueError, match=message):
            engine.submit(request)
    with pytest.raises(TypeError, match=r"^request = \[1\]: expected a Request"):
        engine.submit([1])
    with pytest.raises(ValueError, match="expected an idle one"):
        engine.run([])
    assert engine.stats().waiting == 2
    finished = []
    while not engine.idle:
        finished += [event.ticket for event in engine.step() if event.finish]
    assert finished == first
    with pytest.raises(ValueError, match="tokens in"):
        engine.run([Request([1], 5), Request([50], 5)])
    assert engine.idle
    assert len(engine.run([Request([row], 2) for row in range(9)])) == 9  # more than may wait


WRONG = [
    (Request([1, 50]), r"^prompt = 50: expected tokens in \[0, 50\)"),
    (Request([-1, 3]), r"^prompt = -1: expected tokens in \[0, 50\)"),
    (Request([1], stop_tokens=[50]), r"^stop_tokens = 50: expected tokens in \[0, 50\)"),
    (Request([1] * 40, 10), r"^max_new_tokens = 10: expected at most 48, .* a prompt of 40 tokens, plus 1"),
    (Request([1], 5, logprobs=6), r"^logprobs = 6: expected at most 5 = top_logprobs of the engine"),
]


def test_wrong_requests():
    for changes, error, message in [
        ({"prompt": []}, ValueError, r"^prompt = \(\): expected at least one token"),
        ({"prompt": 3}, TypeError, "^prompt = 3: expected a row of integers"),
        ({"prompt": [1.5]}, TypeError, r"^prompt = \[1.5\]: expected a row of integers"),
        ({"stop_tokens": ["a"]}, TypeError, "^stop_tokens = "),
        ({"max_new_tokens": -1}, ValueError, "^max_new_tokens = -1: expected an integer, at least 0"),
        ({"prompt_logprobs": True}, ValueError, "^prompt_logprobs = True: expected False, or logprobs"),
        ({"sampler": 0.7}, TypeError, "^sampler = 0.7: expected a Sampler"),
        ({"seed": 2**32}, ValueError, "^seed = 4294967296: expected an integer, from 0 to 4294967295"),
        ({"logprobs": -1}, ValueError, "^logprobs = -1: expected an integer, at least 0"),
    ]:
        with pytest.raises(error, match=message):
            Request(**{"prompt": [1], **changes})


def test_a_request_is_a_value():
    request = Request(np.array([1, 2]), stop_tokens=np.array([3]))
    assert request == Request((1, 2), stop_tokens=[3])
    assert hash(request) == hash(Request((1, 2), stop_tokens=[3]))


def test_wrong_options(wide):
    zeros = dict.fromkeys(("slots", "max_length", "prefill_chunk", "max_waiting"), 0)
    for name, value in (zeros | {"decode_chunk": 1.5, "top_logprobs": 51}).items():
        with pytest.raises(ValueError, match=f"^{name} = {value}: expected an integer"):
            Engine(wide.model, wide.params, **{name: value})


def test_how_long_a_text_can_be():
    for schedule, changes, limit in [
        ("CLS", {}, None),
        ("CLSA", {}, 100),
        ("CLS", {"max_positions": 70}, 70),
        ("CA", {"max_positions": 170}, 100),
        ("CY", {}, 64),
        ("N", {}, 100),
        ("E", {}, 30),
    ]:
        mixers = MIXERS | {
            "Y": MixerSpec("hyena", {"l_max": 64}),
            "N": MixerSpec("nystrom", {"num_heads": 2, "num_landmarks": 4}),
            "E": MixerSpec("linear_attention", {"feature_map": "cosformer", "max_length": 30}),
        }
        config = ModelConfig(
            vocab_size=50, d_model=16, schedule=schedule, mixers=mixers, mlp_hidden=16, **changes
        )
        assert token_limit(LanguageModel(config), 100) == limit


def test_prompts_continue_after_what_the_prefix_cache_knows(wide, x64):
    cache = PrefixCache(max_bytes=1 << 20, every=12)
    engine = Engine(wide.model, wide.params, **ENGINE, prefix_cache=cache)
    text = list(range(10, 36))
    requests = [Request(text, 5), Request([*text[:24], 3], 5), Request(text[:24], 5), Request(text[:7], 5)]
    answers = [engine.run([request])[0] for request in requests]
    assert len(cache) == 2
    check(wide, requests, answers)
    assert engine.stats().cached_tokens == 2 * 24
    assert engine.stats().prefilled_tokens == 26 + 1 + 0 + 7


def test_logits_that_are_no_numbers(wide, x64):
    spoiled = jax.tree.map(lambda leaf: array(np.full(leaf.shape, np.nan), leaf.dtype), wide.params)
    engine = Engine(wide.model, spoiled, **ENGINE)
    answers = engine.run([Request([1, 2], 5), Request([3], 1, Sampler(1.0), logprobs=2)])
    assert answers == [((), (), "failed", (), None)] * 2
    (scored,) = engine.run([Request([1, 2], 0, logprobs=1, prompt_logprobs=True)])
    assert scored == ((), (), "failed", (), None)
    assert engine.stats().free == 2


def test_an_interrupted_run_leaves_an_idle_engine(engine, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    requests = [Request(prompt, 20) for prompt in PROMPTS]
    expected = engine.run(requests)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.run(requests)
    assert engine.idle
    assert engine.run(requests) == expected
