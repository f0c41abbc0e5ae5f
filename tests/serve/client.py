"""A server on a loopback port in this process, and the few things that its clients do."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from based_jax.data.tokenizers import ByteTokenizer
from based_jax.serve.__main__ import bind
from based_jax.serve.app import NO_CHAT, Server, Service
from based_jax.serve.fields import Limits
from based_jax.serve.worker import Worker
from tests.subprocesses import PATIENCE

JSON = {"content-type": "application/json"}


class Client:
    """Talks to one server, a connection for every request."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """The response, its body read; `body` is JSON unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, {**JSON, **named, "connection": "close"})
        response = connection.getresponse()
        response.all = response.read()
        connection.close()
        return response

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        return self.send("GET", path, **headers)

    def complete(self, **body: Any) -> dict[str, Any]:
        """A completion that must succeed; greedy unless it says otherwise."""
        return self._succeed("/v1/completions", body)

    def text(self, **body: Any) -> str:
        return self.complete(**body)["choices"][0]["text"]

    def error(
        self, body: Any, status: int = 400, path: str = "/v1/completions", **headers: str
    ) -> dict[str, Any]:
        """The error that a completion must end with."""
        response = self.send("POST", path, body, **headers)
        assert response.status == status, response.all
        return json.loads(response.all)["error"]

    def stream(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a completion, which must be complete."""
        response = self.send("POST", "/v1/completions", {"temperature": 0, "stream": True, **body})
        assert response.status == 200, response.all
        assert response.headers["content-type"].startswith("text/event-stream")
        return read_events(response.all.decode())

    def chat(self, **body: Any) -> dict[str, Any]:
        """A chat completion that must succeed; greedy unless it says otherwise."""
        return self._succeed("/v1/chat/completions", body)

    def _succeed(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self.send("POST", path, {"temperature": 0, **body})
        assert response.status == 200, response.all
        return json.loads(response.all)

    def raw(self, data: bytes) -> socket.socket:
        """A connection on which this much was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(data)
        return connection

    def number(self, name: str) -> float:
        """One of the numbers of /metrics; 0 if it is not there yet."""
        lines = self.get("/metrics").all.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"based_jax_{name}"))

    def wait_for(self, name: str, value: float) -> None:
        """Until a number is `value`."""
        until(lambda: self.number(name) == value, f"{name} = {value}")

    def wait_until_up(self) -> None:
        """Until the server takes requests."""

        def is_up() -> bool:
            try:
                return self.get("/health").status == 200
            except ConnectionError:
                return False

        until(is_up, "the server is up")

    def wait_until_empty(self) -> None:
        """Until nothing is answered and no slot is taken."""
        for name in ("open_completions", "engine_waiting", "engine_prefilling", "engine_running"):
            self.wait_for(name, 0)


def read_events(text: str) -> list[dict[str, Any]]:
    *events, last = text.split("\n\n")[:-1]
    assert last == "data: [DONE]", text[-500:]
    return [json.loads(event.removeprefix("data: ")) for event in events]


def until(condition: Any, name: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE} seconds: {name}"
        time.sleep(0.01)


def slowly(engine: Any, seconds: float = 0.005) -> Any:
    """The engine, with rounds that take at least so long."""
    step = engine.step

    def slow_step() -> Any:
        time.sleep(seconds)
        return step()

    engine.step = slow_step
    return engine


def post_bytes(body: Any) -> bytes:
    """A completion request as it goes over the wire."""
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


@contextlib.contextmanager
def serving(
    engine: Any, limits: Limits, keys: tuple[str, ...] = (), chat: Any = NO_CHAT, **options: Any
) -> Iterator[Client]:
    """A server in a thread, stopped and drained at the end."""
    service = Service(Worker(engine), ByteTokenizer(), 257, "tiny", limits, keys, (), chat)
    started = threading.Event()
    server = Server(service, started.set, **options)
    with bind("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what is not read is soon noticed
        client = Client(listener.getsockname()[1])
        client.server = server
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        client.thread = thread
        thread.start()
        try:
            assert started.wait(30)
            yield client
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
