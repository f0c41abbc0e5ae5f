"""Close connections of clients that stall; finish the answers in progress before the server stops."""

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from based_jax.serve.app import Service
from based_jax.serve.errors import Refusal
from based_jax.serve.limits import Limits

MAX_CHUNKS = 10_000
"""most chunks of a body in HTTP's chunked coding: each takes 50 microseconds, during which all others wait"""

_PERIOD = 1.0  # seconds between two checks of a connection
_KEEP_ALIVE = 5  # seconds that a connection may be idle between two requests
_CLOSING = 5  # seconds for connections to close once their answers are sent


class Server(uvicorn.Server):
    """Serve on a socket until a signal or the engine's failure stops the server.

    The first SIGINT or SIGTERM stops accepting requests; those in progress have `drain_seconds` to finish.
    The second one ends them. `ready` is called once when requests are accepted.
    """

    def __init__(self, service: Service, ready: Callable[[], None] = lambda: None) -> None:
        limits = service.limits
        protocol: Any = {"loop": "asyncio", "http": _guarded(limits), "ws": "none", "lifespan": "on"}
        quiet: Any = {"log_level": "error", "access_log": False, "server_header": False}
        config = uvicorn.Config(
            service.app(),
            **protocol,
            **quiet,
            limit_concurrency=limits.connections,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_CLOSING,
        )
        super().__init__(config)
        self._service, self._ready = service, ready
        self._deadline: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called ten times a second."""
        if self._service.draining or self._service.worker.failure:
            now = time.monotonic()
            self._deadline = self._deadline or now + self._service.limits.drain_seconds
            if not self._service.open or now > self._deadline:
                self.should_exit = True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # the third signal: exit without waiting
        self.should_exit = self._service.draining
        self._service.draining = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; unlike with uvicorn, the process does not die of them afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _guarded(limits: Limits) -> type[H11Protocol]:
    """Return uvicorn's connection class with time limits for a head to arrive and for output to be read.

    A client may also close its side of the connection after its request and still be answered. A client that
    has disconnected looks the same until something is sent to it.
    """

    class Guarded(H11Protocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.conn = _Connection(h11.SERVER)

        def connection_made(self, transport: Any) -> None:
            self._sent = _CountingTransport(transport)
            super().connection_made(cast(Any, self._sent))
            self._half_closed = False
            self._complete_at = self._read_at = self.loop.time()
            self._read = 0
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def eof_received(self) -> bool:
            """Handle a client that sends no more; return whether the connection stays open for the answer."""
            self._half_closed = self._is_answering() and not self.cycle.more_body
            self._probe()
            return self._half_closed

        def on_response_complete(self) -> None:
            super().on_response_complete()  # this may start the next request
            if self._half_closed and not self._is_answering():
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            """Refuse invalid HTTP or too many chunks; if an answer has begun, only close the connection."""
            if self._is_answering():
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                response = Refusal(400, self.conn.problem(), headers={"connection": "close"}).response()
                head = h11.Response(status_code=response.status_code, headers=response.raw_headers)
                for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _look(self) -> None:
            now = self.loop.time()
            if not self._head_is_missing():
                self._complete_at = now
            # A client that reads more slowly than its answer is made never empties the buffer.
            unread, read = self.transport.get_write_buffer_size(), self._sent.read
            if not unread or read > self._read:
                self._read_at, self._read = now, read
            is_late = now - self._complete_at > limits.head_seconds
            if is_late or now - self._read_at > limits.read_seconds:
                self.transport.abort()
            else:
                self._probe()
            self._timer = self.loop.call_later(min(_PERIOD, limits.head_seconds), self._look)

        def _head_is_missing(self) -> bool:
            """Return whether a head is due: no answer is in progress and the keep-alive timer is off."""
            return not self._is_answering() and self.timeout_keep_alive_task is None

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _probe(self) -> None:
            """Send an interim response, so that the connection breaks if the client has disconnected.

            Clients must ignore an unexpected one (RFC 9110, section 15.2).
            """
            waits = self._half_closed and self._is_answering() and not self.cycle.response_started
            if waits and self.conn.their_http_version != b"1.0":  # 1.0 has no interim responses
                self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[])))

    return Guarded


class _CountingTransport:
    """A transport that counts the bytes of its output that were sent to the client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._written = transport, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    @property
    def read(self) -> int:
        """Return the number of bytes that the client's side of the connection has taken."""
        return self._written - self._transport.get_write_buffer_size()


class _Connection(h11.Connection):
    """h11's parser with a limit on the chunks of a body."""

    _chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            if self._chunks > MAX_CHUNKS:
                raise h11.RemoteProtocolError("too many chunks")
        return event

    def problem(self) -> str:
        """Describe what was wrong with the request for which `next_event` raised an error."""
        many = self._chunks > MAX_CHUNKS
        return f"the body has more than {MAX_CHUNKS} chunks" if many else "the request is not HTTP/1.1"
