"""Clients that go, wait, or come in crowds: their slots come back and the others do not notice."""

import contextlib
import json
import threading

import pytest

from tests.marks import release_but
from tests.serve.client import post_bytes, serving, slowly
from tests.serve.conftest import LIMITS
from tests.subprocesses import PATIENCE

ENDLESS = {"prompt": "a", "max_tokens": 200_000, "temperature": 0}


@pytest.mark.parametrize("stream", release_but([True], [False, True]))
def test_a_client_that_goes_frees_its_slot(client, stream):
    cancelled = client.number("engine_cancelled_total")
    with client.raw(post_bytes({**ENDLESS, "stream": stream})):
        client.wait_for("engine_running", 1)
    client.wait_for("engine_running", 0)
    assert client.number("engine_cancelled_total") == cancelled + 1


@pytest.mark.release
def test_a_full_queue(make_engine):
    with serving(make_engine(slots=1, max_waiting=2), LIMITS) as client:
        endless = [client.raw(post_bytes(ENDLESS))]
        client.wait_for("engine_running", 1)
        endless += [client.raw(post_bytes({**ENDLESS, "stream": stream})) for stream in (False, True)]
        client.wait_for("engine_waiting", 2)
        response = client.send("POST", "/v1/completions", ENDLESS)
        assert response.status == 429
        assert response.headers["retry-after"] == "1"
        assert json.loads(response.all)["error"]["code"] == "rate_limit_exceeded"
        endless.pop().close()
        client.wait_for("engine_waiting", 1)
        # One may come now; two that belong together may not, and neither of them is kept.
        assert client.send("POST", "/v1/completions", {**ENDLESS, "n": 2}).status == 429
        client.wait_for("engine_waiting", 1)
        for connection in endless:
            connection.close()
        client.wait_until_empty()
        assert client.complete(prompt="a", max_tokens=3)


@pytest.mark.slow
def test_answers_that_take_too_long(make_engine):
    limits = LIMITS.__class__(length=300_000, max_tokens=200_000, choices=16, answer_seconds=1.0)
    with serving(make_engine(), limits) as client:
        assert client.error(ENDLESS, 504)["code"] == "timeout"
        response = client.send("POST", "/v1/completions", {**ENDLESS, "stream": True})
        *chunks, last, end = response.all.decode().split("\n\n")
        assert len(chunks) > 1
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        assert end == ""
        client.wait_until_empty()


def test_more_connections_than_may_be(make_engine):
    with serving(make_engine(), LIMITS, connections=2) as client:
        waiting = [client.raw(b"")]
        assert client.get("/health").status == 200
        waiting.append(client.raw(b""))
        assert client.get("/health").status == 503
        for connection in waiting:
            connection.close()
        client.wait_until_up()


def test_answers_that_take_longer_than_the_drain(make_engine, caplog):
    answers = []

    def ask(**fields):
        answers.append(client.send("POST", "/v1/completions", {**ENDLESS, **fields}).all.decode())

    with serving(make_engine(), LIMITS, drain_seconds=1) as client:
        threads = [threading.Thread(target=ask, kwargs={"stream": stream}) for stream in (False, True)]
        for thread in threads:
            thread.start()
        client.wait_for("engine_running", 2)
        client.server.should_exit = True
        for thread in threads:
            thread.join(PATIENCE)
    for answer in answers:
        last = answer.removesuffix("\n\n").split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopping"
    assert len(answers) == 2
    assert caplog.text == ""


def test_stopping(make_engine):
    """What is being answered is finished, nothing new begins."""
    answers = []
    with serving(slowly(make_engine()), LIMITS) as client:
        asked = {"prompt": "a", "max_tokens": 800}
        threads = [
            threading.Thread(target=lambda: answers.append(client.text(**asked))),
            threading.Thread(target=lambda: answers.append(client.stream(**asked))),
        ]
        for thread in threads:
            thread.start()
        client.wait_for("engine_running", 2)
        client.server.should_exit = True
        with contextlib.suppress(OSError):  # not connected to, or refused if it was quicker
            while True:
                client.get("/health")
        for thread in threads:
            thread.join(PATIENCE)
    texts = [
        one if isinstance(one, str) else "".join(e["choices"][0]["text"] for e in one) for one in answers
    ]
    assert len(texts) == 2
    assert texts[0] == texts[1]
