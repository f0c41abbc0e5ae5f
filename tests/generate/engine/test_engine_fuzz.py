"""Random requests that come, go and are taken back at any moment: every answer right, nothing remains."""

import numpy as np
import pytest

from based_jax.generate import Engine, Event, Full, Request, Sampler
from based_jax.generate.engine.engine import _join
from tests.generate.answers import ENGINE, check
from tests.generate.tiny import LENGTH

PLAIN = [Sampler(), Sampler(0.9), Sampler(1.3, top_k=7, min_p=0.01), Sampler(0.7, top_p=0.8)]


def random_request(random: np.random.Generator, vocab_size: int) -> Request:
    """A request without penalties and log-probabilities, which are other programs."""
    new = int(random.integers(1, 20))
    length = int(random.integers(1, min(LENGTH - new, 30)))
    return Request(
        prompt=random.integers(0, vocab_size, length),
        max_new_tokens=new,
        sampler=PLAIN[random.integers(len(PLAIN))],
        seed=int(random.integers(2**32)),
        stop_tokens=random.integers(0, vocab_size, random.choice([0, 0, 1, 3])),
    )


@pytest.mark.slow
def test_random_requests(wide, x64):
    """200 requests in bursts; some are refused, and some cancelled, finished ones among them."""
    vocab_size, random = wide.model.config.vocab_size, np.random.default_rng(0)
    engine = Engine(wide.model, wide.params, **ENGINE, max_waiting=3)
    requests: dict[int, Request] = {}
    answers: dict[int, list[Event]] = {}
    refused = most = 0
    while len(requests) < 200 or not engine.idle:
        for _ in range(min(200 - len(requests), random.poisson(1.5))):
            request = random_request(random, vocab_size)
            try:
                ticket = engine.submit(request)
            except Full:
                refused += 1
                continue
            requests[ticket], answers[ticket] = request, []
        if requests and random.random() < 0.05:
            ticket = [*requests][-15:][random.integers(min(15, len(requests)))]
            assert engine.cancel(ticket) != any(event.finish for event in answers[ticket])
            assert not engine.cancel(ticket)
        for event in engine.step():
            assert not any(before.finish for before in answers[event.ticket]), "an event after the last one"
            answers[event.ticket].append(event)
        stats = engine.stats()
        most = max(most, stats.running)
        assert stats.running + stats.prefilling + stats.free == engine.slots
        assert stats.running <= stats.rows <= engine.slots
    assert most == engine.slots, "the case is too easy"
    joined = [_join(events) for events in answers.values()]
    check(wide, list(requests.values()), joined)
    assert {answer.finish for answer in joined} == {"stop", "length", "cancelled"}
    assert refused
    assert engine.stats()[:4] == (0, 0, 0, engine.slots)
