"""Turn the engine's events for one request into its answers, whole or chunk by chunk."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from based_jax.serve.answers import Answer, Chunk, Style
from based_jax.serve.fields import Refusal, SharedFields
from based_jax.serve.worker import Job

if TYPE_CHECKING:
    from based_jax.serve.app import Service

Result = TypeVar("Result")

_MOST_NAMED = 1000  # most tokens whose log-probabilities the event loop writes itself: a few milliseconds


class Answering:
    """The answers to one request that the engine works on; it came at `begin`, on the event loop's clock."""

    def __init__(
        self, service: "Service", wanted: SharedFields, style: Style, job: Job, begin: float
    ) -> None:
        self.job, self.worker, tokenizer = job, service.worker, service.tokenizer
        self._service, self._wanted, self._style, self._begin = service, wanted, style, begin
        self._answers = [
            Answer(tokenizer, wanted.stop, each.prompt, wanted.echoed(i, tokenizer), each.prompt_logprobs)
            for i, each in enumerate(job.requests)
        ]
        self._head = {
            "id": f"{style.prefix}-{secrets.token_hex(12)}",
            "object": style.name,
            "created": int(time.time()),
            "model": service.name,
        }

    async def whole(self) -> dict[str, Any]:
        """Return the response's object once all answers are complete."""
        texts = [""] * len(self._answers)
        shown: list[list[Any]] = [[] for _ in self._answers]
        async for number, chunk in self._chunks():
            texts[number] += chunk.text
            shown[number] += chunk.logprobs

        def choices() -> list[dict[str, Any]]:
            return [
                self._style.choice(number, Chunk(texts[number], shown[number], answer.finish))
                for number, answer in enumerate(self._answers)
            ]

        made = await self._run(sum(map(len, shown)), choices)
        return {**self._head, "choices": made, "usage": self._usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events; an error on the way is the last of them."""
        head = {**self._head, "object": self._style.chunk_name}
        usage = {"usage": None} if self._wanted.include_usage else {}
        try:
            async for number, chunk in self._chunks():
                for choice in await self._run(len(chunk.logprobs), self._style.deltas, number, chunk):
                    yield _event({**head, "choices": [choice], **usage})
                    await asyncio.sleep(0)  # let other tasks run, and notice a disconnect
        except Refusal as refusal:
            yield _event(refusal.body())
            return
        if self._wanted.include_usage:
            yield _event({**head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    async def _chunks(self) -> AsyncIterator[tuple[int, Chunk]]:
        left, now, is_first = len(self._answers), asyncio.get_running_loop().time, True
        while left:
            number, event = await self._next()
            answer = self._answers[number]
            if answer.finish is not None:
                continue  # made before the engine was stopped at a stop text
            chunk = await self._run(len(event.prompt_logprobs), answer.feed, event)
            if chunk.finish == "failed":
                message = f"the model's logits are not numbers after {answer.tokens} tokens"
                raise Refusal(500, message, code="model_failed")
            if chunk.finish is not None:
                left -= 1
                if event.finish is None:
                    self.worker.cancel(self.job, number)
            if is_first:
                self._service.metrics.first_chunk.observe(now() - self._begin)
                is_first = False
            yield number, chunk
        self._service.metrics.answer.observe(now() - self._begin)

    async def _run(self, count: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, in another thread if it writes so many tokens that other requests would wait."""
        return (
            await self._service.aside(function, *arguments) if count > _MOST_NAMED else function(*arguments)
        )

    async def _next(self) -> Any:
        seconds = self._service.limits.answer_seconds
        try:
            async with asyncio.timeout_at(self._begin + seconds):
                return await self.job.next()
        except TimeoutError:
            message = f"the answer was not complete after {seconds:g} seconds"
            raise Refusal(504, message, code="timeout") from None

    def _usage(self) -> dict[str, int]:
        read = sum(len(request.prompt) for request in self.job.requests[:: self._wanted.n])
        made = sum(answer.tokens for answer in self._answers)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


class EventStream(StreamingResponse):
    """Send the events of an answering until they end or the client disconnects; then release it."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        headers = {"cache-control": "no-cache"}
        super().__init__(answering.events(), headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientDisconnect):
                await super().__call__(scope, receive, send)
        finally:
            self._answering.worker.cancel(self._answering.job)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work; stop it with `ClientDisconnect` when the client disconnects first."""

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
    """Encode one server-sent event in ASCII: many clients end lines at U+0085, U+2028 and U+2029 as well."""
    return b"data: " + json.dumps(value, allow_nan=False).encode("ascii") + b"\n\n"
