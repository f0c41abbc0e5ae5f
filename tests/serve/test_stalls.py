"""Clients that go, wait, or come in crowds: their slots come back and the others do not notice."""

import contextlib
import json
import socket
import threading
import time

import pytest

from tests.marks import release_but
from tests.patience import PATIENCE
from tests.serve.client import post_bytes, serving, slowly, until
from tests.serve.conftest import LIMITS

ENDLESS = {"prompt": "a", "max_tokens": 200_000, "temperature": 0}


@pytest.mark.parametrize("stream", release_but([True], [False, True]))
def test_a_client_that_goes_frees_its_slot(client, stream):
    cancelled = client.number("engine_cancelled_total")
    with client.raw(post_bytes({**ENDLESS, "stream": stream})):
        client.wait_for("engine_running", 1)
    client.wait_for("engine_running", 0)
    assert client.number("engine_cancelled_total") == cancelled + 1
    client.wait_for("open_completions", 0)


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


@pytest.fixture(scope="module")
def hasty(make_engine):
    """A server with little patience."""
    limits = LIMITS.__class__(
        length=300_000, max_tokens=200_000, choices=16, connections=6, answer_seconds=1.0, head_seconds=1.0
    )
    with serving(make_engine(), limits) as client:
        yield client


@pytest.mark.release
def test_answers_that_take_too_long(hasty):
    assert hasty.error(ENDLESS, 504)["code"] == "timeout"
    response = hasty.send("POST", "/v1/completions", {**ENDLESS, "stream": True})
    assert response.status == 200
    *chunks, last, end = response.all.decode().split("\n\n")
    assert len(chunks) > 1
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    assert end == ""
    hasty.wait_until_empty()


def test_heads_that_do_not_come(hasty):
    """None of three, which wait at the same time."""
    begin = time.monotonic()
    with contextlib.ExitStack() as open_ones:
        beginnings = (b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nx: ")
        for connection in [open_ones.enter_context(hasty.raw(sent)) for sent in beginnings]:
            assert connection.recv(1000) == b""
            assert 0.5 < time.monotonic() - begin < LIMITS.head_seconds


def test_more_connections_than_may_be(hasty):
    waiting = [hasty.raw(b"") for _ in range(6)]
    assert hasty.get("/health").status == 503
    for connection in waiting:
        connection.close()
    until(lambda: hasty.get("/health").status == 200, "connections are free again")


@pytest.mark.release
def test_a_client_that_does_not_read(make_engine):
    """Its answer is given up; meanwhile the others are answered."""
    limits = LIMITS.__class__(length=300_000, max_tokens=200_000, choices=16, read_seconds=1.0)
    with serving(make_engine(), limits) as client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", client.port))
        with connection:
            connection.sendall(post_bytes({**ENDLESS, "stream": True, "n": 2, "logprobs": 0}))
            client.wait_for("engine_running", 2)
            client.wait_for("engine_running", 0)
            assert client.text(prompt="a", max_tokens=3)
            client.wait_for("open_completions", 0)


@pytest.mark.release
def test_a_client_that_reads_slowly(make_engine):
    """It is answered for as long as it reads, though more is always waiting for it."""
    limits = LIMITS.__class__(length=300_000, max_tokens=200_000, choices=16, read_seconds=1.0)
    with serving(make_engine(), limits) as client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", client.port))
        with connection:
            connection.sendall(post_bytes({**ENDLESS, "stream": True, "n": 2, "logprobs": 0}))
            end = time.monotonic() + 4 * limits.read_seconds
            while time.monotonic() < end:
                assert connection.recv(1024), "the answer was cut"
                time.sleep(0.05)
        client.wait_until_empty()


def test_draining(make_engine):
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
        client.service.draining = True
        # Refused while the two are answered, or not even connected to after them.
        with contextlib.suppress(OSError):
            assert client.send("POST", "/v1/completions", asked).status == 503
        for thread in threads:
            thread.join(PATIENCE)
    texts = [
        one if isinstance(one, str) else "".join(e["choices"][0]["text"] for e in one) for one in answers
    ]
    assert len(texts) == 2
    assert texts[0] == texts[1]
