"""Random requests that come, go and are taken back at any moment: every answer right, nothing remains."""

import numpy as np
import pytest

from based_jax.generate import Completion, Engine, Full, Request, Sampler
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


class Client:
    """Submits, collects and cancels, and keeps the books."""

    def __init__(self, engine: Engine, vocab_size: int) -> None:
        self.engine, self.vocab_size = engine, vocab_size
        self.random = np.random.default_rng(0)
        self.requests: dict[int, Request] = {}
        self.answers: dict[int, Completion] = {}
        self.refused = 0

    def live(self, count: int) -> None:
        """Send `count` requests in bursts and wait for the rest."""
        left, most = count, 0
        while left or not self.engine.idle:
            for _ in range(min(left, self.random.poisson(1.5))):
                left -= self.send()
            if self.random.random() < 0.05:
                self.cancel()
            for event in self.engine.step():
                self.hear(event)
            stats = self.engine.stats()
            most = max(most, stats.running)
            assert stats.running + stats.prefilling + stats.free == self.engine.slots
            assert stats.running <= stats.rows <= self.engine.slots
        assert most == self.engine.slots, "the case is too easy"

    def send(self) -> bool:
        request = random_request(self.random, self.vocab_size)
        try:
            self.requests[self.engine.submit(request)] = request
        except Full:
            self.refused += 1
            return False
        return True

    def cancel(self) -> None:
        """Any of the latest, finished ones among them."""
        tickets = list(self.requests)[-15:]
        if tickets:
            ticket = tickets[self.random.integers(len(tickets))]
            done = ticket in self.answers and self.answers[ticket].finish is not None
            assert self.engine.cancel(ticket) != done
            assert not self.engine.cancel(ticket)

    def hear(self, event) -> None:
        before = self.answers.get(event.ticket, Completion((), (), None))
        assert before.finish is None, "an event after the last one"
        tokens, logprobs = before.tokens + event.tokens, before.logprobs + event.logprobs
        self.answers[event.ticket] = Completion(tokens, logprobs, event.finish, end=event.end)


@pytest.mark.release
def test_random_requests(wide, x64):
    engine = Engine(wide.model, wide.params, **ENGINE, max_waiting=3)
    client = Client(engine, wide.model.config.vocab_size)
    client.live(200)
    assert client.answers.keys() == client.requests.keys()
    check(wide, list(client.requests.values()), [client.answers[ticket] for ticket in client.requests])
    assert {answer.finish for answer in client.answers.values()} == {"stop", "length", "cancelled"}
    assert client.refused
    stats = engine.stats()
    assert (stats.waiting, stats.prefilling, stats.running, stats.free) == (0, 0, 0, engine.slots)
