"""The routes: completions as OpenAI has them, models, health, metrics, a page."""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine import request as engine_request
from based_jax.serve import errors
from based_jax.serve.answers import Answer, Chunk, logprobs_object
from based_jax.serve.body import read_body, shorten
from based_jax.serve.completion_request import CompletionRequest
from based_jax.serve.errors import Refusal
from based_jax.serve.hosts import KnownHosts
from based_jax.serve.limits import Limits
from based_jax.serve.metrics import CountResponses, Metrics, Watch
from based_jax.serve.page import page
from based_jax.serve.worker import Failed, Job, SlowReader, Worker

Result = TypeVar("Result")

_READERS = 2  # threads that parse and tokenize; more would keep the event loop from Python's global lock


@dataclasses.dataclass(eq=False)
class Service:
    """What the routes share."""

    worker: Worker  # runs the engine; the application starts and stops it
    tokenizer: Tokenizer
    vocab_size: int  # the model's
    name: str  # the model's, as clients call it
    limits: Limits
    keys: dataclasses.InitVar[Sequence[str]] = ()  # who may use ``/v1``; empty is everybody
    hosts: dataclasses.InitVar[Sequence[str]] = ()  # what clients may call the server, see `KnownHosts`
    open: int = dataclasses.field(default=0, init=False)  # completions that are being answered
    draining: bool = dataclasses.field(default=False, init=False)  # asked to stop: finish, begin nothing

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
        ]
        handlers: Any = {Refusal: errors.on_refusal, HTTPException: errors.on_http, Exception: errors.on_bug}
        names, metrics = self._hosts, self.metrics
        middleware = [Middleware(CountResponses, metrics=metrics), Middleware(KnownHosts, names=names)]
        options: Any = {"exception_handlers": handlers, "lifespan": self._lifespan}
        app = Starlette(routes=routes, middleware=middleware, **options)
        app.router.redirect_slashes = False  # a path has one name, and no redirection repeats a client's host
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.worker.start()
        try:
            yield
        finally:
            self._readers.shutdown(wait=False, cancel_futures=True)
            await self.worker.stop()

    async def health(self, request: Request) -> Response:
        """200 while completions are taken, else 503."""
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
        self._authorize(request)
        if self.draining:
            headers = {"connection": "close", "retry-after": "1"}
            raise Refusal(503, "the server is stopping", code="stopping", headers=headers)
        self.open += 1
        try:
            response = await self._complete(request)
        except BaseException as error:
            self.open -= 1
            if isinstance(error, ClientDisconnect):
                return Response(status_code=499)  # nobody sees it; the number is in the metrics
            raise
        if not isinstance(response, EventStream):  # which counts as open until it ends
            self.open -= 1
        return response

    async def _complete(self, request: Request) -> Response:
        watch = Watch(self.metrics)
        deadline = asyncio.get_running_loop().time() + self.limits.answer_seconds
        body = await read_body(request, self.limits)
        wanted, requests = await asyncio.get_running_loop().run_in_executor(self._readers, self._read, body)
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
        completion = _Completion(self, wanted, job, watch, deadline)
        if wanted.stream:
            return EventStream(completion)
        try:
            return JSONResponse(await _until_gone(request.receive, completion.whole()))
        finally:
            self.worker.cancel(job)

    def _read(self, body: bytes) -> tuple[CompletionRequest, list[engine_request.Request]]:
        wanted = CompletionRequest.read(body)
        if wanted.model is not None:
            self._expect_model(wanted.model)
        return wanted, wanted.requests(self.tokenizer, self.vocab_size, self.limits)

    def _model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "based_jax"}

    def _expect_model(self, name: str) -> None:
        if name != self.name:
            message = f"model = {shorten(name)}: this server has {self.name!r}"
            raise Refusal(404, message, param="model", code="model_not_found")

    def _authorize(self, request: Request) -> None:
        if not self._keys:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip().encode("utf-8")
        # Every key is compared, and each in a time that does not tell how much of it was right.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            headers = {"www-authenticate": "Bearer"}
            message = "expected the header Authorization: Bearer KEY with a known key"
            raise Refusal(401, message, code="invalid_api_key", headers=headers)


class _Completion:
    """One request's answers, whole or chunk by chunk; `deadline` is in the event loop's time."""

    def __init__(
        self, service: Service, wanted: CompletionRequest, job: Job, watch: Watch, deadline: float
    ) -> None:
        self.service, self.job = service, job
        self._wanted, self._watch, self._deadline = wanted, watch, deadline
        self._answers = [self._answer(number) for number in range(len(job.requests))]
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }

    async def whole(self) -> dict[str, Any]:
        """The response's object, when all is made."""
        texts = [""] * len(self._answers)
        shown: list[list[Any]] = [[] for _ in self._answers]
        async for number, chunk in self._chunks():
            texts[number] += chunk.text
            shown[number] += chunk.logprobs
        choices = [
            self._choice(number, Chunk(texts[number], shown[number], answer.finish))
            for number, answer in enumerate(self._answers)
        ]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def begun(self) -> None:
        """Wait until there is something to send, if only an error."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                await self.job.ready()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events; an error on the way is the last of them."""
        usage = {"usage": None} if self._wanted.include_usage else {}
        try:
            async for number, chunk in self._chunks():
                if chunk.text or chunk.logprobs or chunk.finish:
                    yield _event({**self._head, "choices": [self._choice(number, chunk)], **usage})
                    await asyncio.sleep(0)  # sending need not wait: let others in, and notice who has gone
        except Refusal as refusal:
            yield _event(refusal.body())
            return
        if self._wanted.include_usage:
            yield _event({**self._head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    async def _chunks(self) -> AsyncIterator[tuple[int, Chunk]]:
        left = len(self._answers)
        while left:
            number, event = await self._next()
            answer = self._answers[number]
            if answer.finish is not None:
                continue  # made before the engine heard that a stop text had come
            chunk = answer.feed(event)
            if chunk.finish == "failed":
                message = f"the model's logits are not numbers after {answer.tokens} tokens"
                raise Refusal(500, message, code="model_failed")
            if chunk.finish is not None:
                left -= 1
                if event.finish is None:
                    self.service.worker.cancel(self.job, number)
            self._watch.chunk()
            yield number, chunk
        self._watch.end()

    async def _next(self) -> Any:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self.job.next()
        except TimeoutError:
            seconds = self.service.limits.answer_seconds
            message = f"the answer was not complete after {seconds:g} seconds"
            raise Refusal(504, message, code="timeout") from None
        except Failed:
            raise errors.failed() from None
        except SlowReader as error:
            raise Refusal(408, str(error), code="slow_reader") from None

    def _answer(self, number: int) -> Answer:
        prompt = ""
        if self._wanted.echo:
            given = self._wanted.prompts[number // self._wanted.n]
            prompt = given if isinstance(given, str) else self.service.tokenizer.decode(given)
        return Answer(self.service.tokenizer, self._wanted.stop, prompt)

    def _choice(self, number: int, chunk: Chunk) -> dict[str, Any]:
        shows = self._wanted.logprobs is not None
        logprobs = logprobs_object(chunk.logprobs, self.service.tokenizer) if shows else None
        return {"index": number, "text": chunk.text, "logprobs": logprobs, "finish_reason": chunk.finish}

    def _usage(self) -> dict[str, int]:
        read = sum(len(request.prompt) for request in self.job.requests[:: self._wanted.n])
        made = sum(answer.tokens for answer in self._answers)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


class EventStream(StreamingResponse):
    """Sends a completion's events until they end or the client goes; then nothing of it is left."""

    def __init__(self, completion: _Completion) -> None:
        self._completion, self._events = completion, completion.events()
        headers = {"cache-control": "no-cache"}
        super().__init__(self._events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._completion.service
        try:
            async with contextlib.aclosing(self._events):
                with contextlib.suppress(ClientDisconnect, OSError):
                    await _until_gone(receive, self._stream(send))
        finally:
            service.worker.cancel(self._completion.job)
            service.open -= 1

    async def _stream(self, send: Send) -> None:
        # Once the head is sent, who has gone is noticed by what is sent next: it must follow soon.
        await self._completion.begun()
        await self.stream_response(send)


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work; stop it with `ClientDisconnect` when the client goes first."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = (asyncio.create_task(work), asyncio.create_task(gone()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(value: Any) -> bytes:
    """One server-sent event; JSON has no line breaks of its own."""
    return b"data: " + json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n\n"
