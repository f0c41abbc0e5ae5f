"""The routes: OpenAI's completions and models, health, metrics; the names and the server that answer them."""

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import math
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from based_jax.data.chat.template import Chat
from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine.request import Request as EngineRequest
from based_jax.serve.answering import Answering, EventStream, until_gone
from based_jax.serve.answers import ChatStyle, Style, TextStyle
from based_jax.serve.fields import HANDLERS, Limits, Refusal, SharedFields, read_body, shorten
from based_jax.serve.requests import ChatRequest, CompletionRequest
from based_jax.serve.worker import Worker
from based_jax.stop_request import ECHO

NO_CHAT = (
    "this model has no chat template: expected chat_template in tokenizer_config.json, or the file "
    "chat_template.jinja, next to its weights; POST /v1/completions continues a text"
)
_LAST_WORDS = 2  # seconds for clients to read why their answers ended; uvicorn cuts off the others
_READERS = 2  # threads that parse and tokenize; more would starve the event loop of Python's global lock

_OF_ENGINE: dict[str, tuple[Any, str]] = {
    "waiting": (GaugeMetricFamily, "requests that have not been started"),
    "prefilling": (GaugeMetricFamily, "requests whose prompt is being read"),
    "running": (GaugeMetricFamily, "requests that have a slot"),
    "free": (GaugeMetricFamily, "slots that a request could take"),
    "made_tokens": (CounterMetricFamily, "tokens made"),
    "prefilled_tokens": (CounterMetricFamily, "tokens of prompts that were read"),
    "cached_tokens": (CounterMetricFamily, "tokens of prompts that the prefix cache supplied"),
    "finished": (CounterMetricFamily, "engine requests answered"),
    "cancelled": (CounterMetricFamily, "engine requests cancelled"),
}
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)

_Read = tuple[SharedFields, list[EngineRequest], Style]


class Service:
    """The state that the routes share.

    Args:
        worker: runs the engine; started and stopped by the application.
        vocab_size: the model's.
        name: the model's name for clients.
        keys: keys that allow using ``/v1``; empty allows everybody.
        hosts: names of the server, see `KnownHosts`.
        chat: the chat template, or why there is none.
    """

    def __init__(
        self,
        worker: Worker,
        tokenizer: Tokenizer,
        vocab_size: int,
        name: str,
        limits: Limits,
        keys: Sequence[str] = (),
        hosts: Sequence[str] = (),
        chat: Chat | str = NO_CHAT,
    ) -> None:
        self.worker, self.metrics = worker, Metrics(worker)
        self.tokenizer, self.limits, self.name = tokenizer, limits, name
        self._chat, self._vocab_size, self._hosts = chat, vocab_size, hosts
        self._keys = [key.encode("utf-8") for key in keys]
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")
        self._model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "based_jax"}

    def app(self) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/metrics", self._numbers),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route(
                "/v1/completions", functools.partial(self._answer, self._read_completion), methods=["POST"]
            ),
            Route("/v1/chat/completions", functools.partial(self._answer, self._read_chat), methods=["POST"]),
        ]
        middleware = [
            Middleware(CountResponses, metrics=self.metrics),
            Middleware(KnownHosts, names=self._hosts),
        ]
        app = Starlette(False, routes, middleware, HANDLERS, self._lifespan)
        app.router.redirect_slashes = False  # one name per path; no redirection echoes a client's host
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.worker.start()
        try:
            yield
        finally:
            self._readers.shutdown(wait=False, cancel_futures=True)
            if isinstance(self._chat, Chat):
                self._chat.close()
            await self.worker.stop()

    async def _health(self, request: Request) -> Response:
        """Return 200 while the engine works, else 503."""
        failed = self.worker.failure is not None
        return JSONResponse({"status": "failed" if failed else "ok"}, 503 if failed else 200)

    async def _numbers(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._model]})

    async def _one_model(self, request: Request) -> Response:
        self._authorize(request)
        self._expect_model(request.path_params["name"])
        return JSONResponse(self._model)

    async def _answer(self, read: Callable[[bytes], _Read], request: Request) -> Response:
        self._authorize(request)
        begin = asyncio.get_running_loop().time()
        wanted, requests, style = await self.aside(read, await read_body(request, self.limits.body))
        job = await self.worker.submit(requests)
        answering = Answering(self, wanted, style, job, begin)
        if wanted.stream:
            return EventStream(answering)
        try:
            whole = await until_gone(request.receive, answering.whole())
            return Response(msgspec.json.encode(whole), media_type="application/json")
        finally:
            self.worker.cancel(job)

    async def aside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a slow function in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)

    def _read_completion(self, body: bytes) -> _Read:
        wanted = CompletionRequest.read(body)
        self._expect_model(wanted.model)
        requests = wanted.requests(self.tokenizer, self._vocab_size, self.limits)
        return wanted, requests, TextStyle(self.tokenizer, logprobs=wanted.logprobs is not None)

    def _read_chat(self, body: bytes) -> _Read:
        if isinstance(self._chat, str):
            raise Refusal(400, self._chat, code="no_chat_template")
        wanted = ChatRequest.read(body)
        self._expect_model(wanted.model)
        requests = wanted.requests(self._chat, self.limits)
        return wanted, requests, ChatStyle(self.tokenizer, logprobs=wanted.logprobs)

    def _expect_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            message = f"model = {shorten(name)}: this server has {self._model['id']!r}"
            raise Refusal(404, message, param="model", code="model_not_found")

    def _authorize(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1")  # the bytes that were sent
        # Compare every key, and each in constant time, so that timing reveals nothing about them.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if self._keys and (scheme.lower() != "bearer" or not any(matches)):
            message = "expected the header Authorization: Bearer KEY with a known key"
            headers = {"www-authenticate": "Bearer"}
            raise Refusal(401, message, code="invalid_api_key", headers=headers)


class Metrics:
    """The metrics of one server, separate from any other's in the process, and of its engine."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._registry = CollectorRegistry()
        own: Any = {"namespace": "based_jax", "registry": self._registry}
        self.responses = Counter("http_responses", "responses begun, by status", ["status"], **own)
        meaning = "from a completion's request to the first chunk of its answer"
        self.first_chunk = Histogram("first_piece_seconds", meaning, buckets=_SECONDS, **own)
        meaning = "from a completion's request to the end of its answer"
        self.answer = Histogram("answer_seconds", meaning, buckets=_SECONDS, **own)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        open_ones, stats = self._worker.open, self._worker.stats
        yield GaugeMetricFamily("based_jax_open_completions", "completions being answered", value=open_ones)
        for name, (kind, meaning) in _OF_ENGINE.items():
            yield kind(f"based_jax_engine_{name}", meaning, value=getattr(stats, name))


class CountResponses:
    """Middleware: count responses by their status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responses.labels(message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counted)


class KnownHosts:
    """Middleware: refuse requests whose Host header is not one of the server's names.

    A site can make its own name resolve to this server's address after its page is loaded (DNS rebinding).
    The browser then lets the page read the server's answers, but its requests still name the site as their
    host.

    IP addresses are accepted, since no site has one as its name, and so are requests without the header,
    which every browser sends. starlette's TrustedHostMiddleware cannot accept all addresses. `names` are
    accepted besides this machine's; ``*.example.com`` is every name with that ending, ``*`` any.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app = app
        self._names = [name.lower() for name in ("localhost", "*.localhost", *names)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or self.knows(host):
            return await self._app(scope, receive, send)
        message = f"host = {shorten(host)}: expected localhost, an IP address or a name of --allowed-hosts"
        await Refusal(421, message, code="unknown_host").response()(scope, receive, send)

    def knows(self, host: str) -> bool:
        """Return whether a Host header is one of the server's names or an address, with any port."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:  # an unfinished IPv6 address
            return False
        if any(name.endswith(own[1:]) if own.startswith("*") else name == own for own in self._names):
            return True
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return False


class Server(uvicorn.Server):
    """uvicorn's server: serve on sockets until a signal or the engine's failure stops it.

    uvicorn then closes the sockets and waits for the answers in progress.

    Args:
        ready: called once when requests are accepted.
        connections: most open connections; more get 503. Each can hold a body in memory.
        drain_seconds: time for the answers in progress.
    """

    def __init__(
        self,
        service: Service,
        ready: Callable[[], object] = lambda: None,
        connections: int = 1000,
        drain_seconds: int = 30,
    ) -> None:
        config = uvicorn.Config(
            service.app(),
            ws="none",
            lifespan="on",
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=connections + 1,  # uvicorn counts the new one, and refuses from this number on
            timeout_graceful_shutdown=drain_seconds + _LAST_WORDS,
        )
        super().__init__(config)
        self._ready, self._worker, self._drain_seconds = ready, service.worker, drain_seconds
        self._asked = -math.inf  # also if the engine fails first
        service.worker.on_failure = self._stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self._drain_seconds, self._worker.give_up)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, and end the process at a second SIGINT that is no echo of it."""
        if not self.should_exit:
            self._asked = time.monotonic()
            super().handle_exit(sig, frame)
        elif sig == signal.SIGINT and time.monotonic() > self._asked + ECHO:
            os._exit(128 + sig)

    def _stop(self) -> None:
        self.should_exit = True
