"""The routes: OpenAI's completions and models, health, metrics, a web page."""

import asyncio
import contextlib
import dataclasses
import hmac
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from based_jax.data.chat.template import Chat
from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine import request as engine_request
from based_jax.serve import errors
from based_jax.serve.answering import Answering, Clock, EventStream, until_gone
from based_jax.serve.body import read_body, shorten
from based_jax.serve.chat_request import ChatRequest
from based_jax.serve.completion_request import CompletionRequest
from based_jax.serve.errors import Refusal
from based_jax.serve.hosts import KnownHosts
from based_jax.serve.limits import Limits
from based_jax.serve.metrics import CountResponses, Metrics, Watch
from based_jax.serve.page import page
from based_jax.serve.styles import ChatStyle, Style, TextStyle
from based_jax.serve.worker import Failed, Worker

_READERS = 2  # threads that parse and tokenize; more would starve the event loop of Python's global lock


NO_CHAT = (
    "this model has no chat template: expected chat_template in tokenizer_config.json, or the file "
    "chat_template.jinja, next to its weights; POST /v1/completions continues a text"
)


class _Read(NamedTuple):
    """A request's body after parsing."""

    wanted: CompletionRequest | ChatRequest
    requests: list[engine_request.Request]
    style: Style


@dataclasses.dataclass(eq=False)
class Service:
    """The state that the routes share."""

    worker: Worker  # runs the engine; started and stopped by the application
    tokenizer: Tokenizer
    vocab_size: int  # the model's
    name: str  # the model's name for clients
    limits: Limits
    keys: dataclasses.InitVar[Sequence[str]] = ()  # keys that allow using ``/v1``; empty allows everybody
    hosts: dataclasses.InitVar[Sequence[str]] = ()  # names of the server, see `KnownHosts`
    chat: Chat | str = NO_CHAT  # the chat template, or why there is none
    open: int = dataclasses.field(default=0, init=False)  # completions in progress
    draining: bool = dataclasses.field(default=False, init=False)  # stopping: finish answers, start none

    def __post_init__(self, keys: Sequence[str], hosts: Sequence[str]) -> None:
        self.metrics = Metrics(lambda: self.worker.stats)
        self.created = int(time.time())
        self.metrics.open.set_function(lambda: self.open)
        self._keys = [key.encode("utf-8") for key in keys]
        self._hosts = tuple(hosts)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")

    def app(self) -> Starlette:
        routes = [
            Route("/", lambda request: page()),
            Route("/health", self.health),
            Route("/metrics", self.numbers),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
        ]
        handlers: Any = {Refusal: errors.on_refusal, HTTPException: errors.on_http, Exception: errors.on_bug}
        names, metrics = self._hosts, self.metrics
        middleware = [Middleware(CountResponses, metrics=metrics), Middleware(KnownHosts, names=names)]
        options: Any = {"exception_handlers": handlers, "lifespan": self._lifespan}
        app = Starlette(routes=routes, middleware=middleware, **options)
        app.router.redirect_slashes = False  # one name per path; no redirection echoes a client's host
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.worker.start()
        try:
            yield
        finally:
            self._readers.shutdown(wait=False, cancel_futures=True)
            if isinstance(self.chat, Chat):
                self.chat.close()
            await self.worker.stop()

    async def health(self, request: Request) -> Response:
        """Return 200 while completions are accepted, else 503."""
        state = "failed" if self.worker.failure else "draining" if self.draining else "ok"
        return JSONResponse({"status": state}, 200 if state == "ok" else 503)

    async def numbers(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._authorize(request)
        self._expect_model(request.path_params["name"])
        return JSONResponse(self._model())

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, self._read_completion)

    async def chat_completions(self, request: Request) -> Response:
        return await self._answer(request, self._read_chat)

    async def _answer(self, request: Request, read: Callable[[bytes], _Read]) -> Response:
        self._authorize(request)
        if self.draining:
            headers = {"connection": "close", "retry-after": "1"}
            raise Refusal(503, "the server is stopping", code="stopping", headers=headers)
        self.open += 1
        try:
            response = await self._complete(request, read)
        except BaseException as error:
            self.open -= 1
            if isinstance(error, ClientDisconnect):
                return Response(status_code=499)  # nobody receives it; only the metrics count it
            raise
        if not isinstance(response, EventStream):  # a stream counts as open until it ends
            self.open -= 1
        return response

    async def _complete(self, request: Request, read: Callable[[bytes], _Read]) -> Response:
        seconds = self.limits.answer_seconds
        clock = Clock(asyncio.get_running_loop().time() + seconds, seconds, Watch(self.metrics))
        body = await read_body(request, self.limits)
        wanted, requests, style = await self._aside(read, body)
        try:
            job = await self.worker.submit(requests)
        except engine_request.Full:
            message = "too many requests are waiting: try again in a second"
            headers = {"retry-after": "1"}
            raise Refusal(429, message, code="rate_limit_exceeded", headers=headers) from None
        except (ValueError, TypeError) as error:
            raise Refusal(400, str(error), param="prompt") from None
        except Failed:
            raise errors.failed() from None
        own = self.worker, self.tokenizer, self.name, clock, self._aside
        answering = Answering(wanted, style, job, *own)
        if wanted.stream:
            return EventStream(answering, ended=self._ended)
        try:
            return JSONResponse(await until_gone(request.receive, answering.whole()))
        finally:
            self.worker.cancel(job)

    def _ended(self) -> None:
        self.open -= 1

    async def _aside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a slow function in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)

    def _read_completion(self, body: bytes) -> _Read:
        wanted = CompletionRequest.read(body)
        self._expect_model(wanted.model)
        style = TextStyle(self.tokenizer, logprobs=wanted.logprobs is not None)
        return _Read(wanted, wanted.requests(self.tokenizer, self.vocab_size, self.limits), style)

    def _read_chat(self, body: bytes) -> _Read:
        if isinstance(self.chat, str):
            raise Refusal(400, self.chat, code="no_chat_template")
        wanted = ChatRequest.read(body)
        self._expect_model(wanted.model)
        style = ChatStyle(self.tokenizer, logprobs=wanted.logprobs is not None)
        requests = wanted.requests(self.tokenizer, self.chat, self.vocab_size, self.limits)
        return _Read(wanted, requests, style)

    def _model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "based_jax"}

    def _expect_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            message = f"model = {shorten(name)}: this server has {self.name!r}"
            raise Refusal(404, message, param="model", code="model_not_found")

    def _authorize(self, request: Request) -> None:
        if not self._keys:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip().encode("utf-8")
        # Compare every key, and each in constant time, so that timing reveals nothing about them.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            headers = {"www-authenticate": "Bearer"}
            message = "expected the header Authorization: Bearer KEY with a known key"
            raise Refusal(401, message, code="invalid_api_key", headers=headers)
