"""The engine's thread: what happens when the engine fails, and how requests are handed over."""

import asyncio
import json
import threading

import pytest

from based_jax.generate.engine.request import Event, Full, Request, Stats
from based_jax.serve.fields import Refusal
from based_jax.serve.worker import Worker
from tests.serve.client import serving
from tests.serve.conftest import LIMITS
from tests.subprocesses import PATIENCE


class Scripted:
    """An engine with scripted rounds: a round per entry of `rounds`."""

    def __init__(self, rounds=(), needs=1):
        self.rounds = list(rounds)
        self.needs = needs  # requests before the first round
        self.held: list[int] = []
        self.cancelled: list[int] = []
        self.given = 0

    @property
    def idle(self):
        return not self.rounds or len(self.held) < self.needs

    def submit(self, request):
        if len(self.held) == 2:
            raise Full("no capacity")
        self.given += 1
        self.held.append(self.given)
        return self.given

    def cancel(self, ticket):
        self.cancelled.append(ticket)
        if ticket in self.held:
            self.held.remove(ticket)
        return True

    def step(self):
        made = self.rounds.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    def stats(self):
        return Stats(0, 0, len(self.held), 0, 0, 0, 0, 0, 0, 0)


def run(engine, check):
    """`check(worker)` in an event loop of its own."""

    async def main():
        worker = Worker(engine)
        worker.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await check(worker)
        finally:
            await worker.stop()
        assert not worker._thread.is_alive()

    asyncio.run(main())


def test_all_requests_or_none():
    engine = Scripted()

    async def check(worker):
        with pytest.raises(Refusal, match="too many requests are waiting") as raised:
            await worker.submit([Request([1])] * 3)
        assert raised.value.status == 429
        assert engine.cancelled == [1, 2]
        job = await worker.submit([Request([1])] * 2)
        assert engine.held == [3, 4]
        worker.cancel(job, 1)
        assert worker.open == 1

    run(engine, check)
    assert engine.cancelled == [1, 2, 4]


def test_events_reach_their_request():
    engine = Scripted([[Event(2, (5,)), Event(1, (6,))], [Event(1, (7,), (), "stop")]])

    async def check(worker):
        job = await worker.submit([Request([1])] * 2)
        assert [await job.next() for _ in range(3)] == [
            (1, Event(2, (5,))),
            (0, Event(1, (6,))),
            (0, Event(1, (7,), (), "stop")),
        ]
        worker.cancel(job)
        assert worker.open == 0

    run(engine, check)
    assert engine.cancelled == [2]  # the finished one is the engine's own affair


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_go_on(stream):
    engine = Scripted([[Event(1, (97,))], [Event(1, (), (), "failed")]])
    with serving(engine, LIMITS) as client:
        response = client.send("POST", "/v1/completions", {"prompt": "a", "stream": stream})
    *_, last = response.all.decode().removesuffix("\n\n").split("\n\n")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert response.status == (200 if stream else 500)
    assert error["code"] == "model_failed"
    assert error["message"] == "the model's logits are not numbers after 1 tokens"


def test_a_failure_ends_the_server(caplog):
    """Waiting clients get an event, whether or not they got the beginning of an answer."""
    engine = Scripted([[Event(1, (97,)), Event(2, (97,))], RuntimeError("device lost")], needs=2)
    answers = {}

    with serving(engine, LIMITS) as client:

        def ask(stream):
            body = {"prompt": "a", "stream": stream}
            answers[stream] = client.send("POST", "/v1/completions", body)

        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
        for thread in threads:
            thread.start()
        for thread in (*threads, client.thread):
            thread.join(20)
            assert not thread.is_alive()
    assert answers[False].status == 500
    assert json.loads(answers[False].all)["error"]["code"] == "engine_failed"
    first, last, _ = answers[True].all.decode().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "a"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failed"
    assert "device lost" in caplog.text
