"""Run the engine in its own thread: the event loop submits requests and receives their events.

The engine computes for long stretches and has no locks, so only this thread touches it. It takes commands
from a queue between two rounds; it sends the events to the event loop in one call per round.
"""

import asyncio
import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from based_jax.generate.engine import Engine
from based_jax.generate.engine.request import Event, Full, Request, Stats
from based_jax.serve.fields import Refusal

logger = logging.getLogger(__name__)

_LAST_ROUND = 30.0  # seconds for the thread to end


def failed() -> Refusal:
    """The engine's thread has ended with an error: nothing is generated any more."""
    return Refusal(500, "the engine failed and the server is stopping", code="engine_failed")


def _full() -> Refusal:
    message, headers = "too many requests are waiting: try again in a second", {"retry-after": "1"}
    return Refusal(429, message, code="rate_limit_exceeded", headers=headers)


class Job:
    """Requests that belong together, as the event loop uses them; made by `Worker.submit`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events: asyncio.Queue[tuple[int, Event] | Refusal] = asyncio.Queue()

    async def next(self) -> tuple[int, Event]:
        """Return the next event, with its request's number; a Refusal if there are no more."""
        event = await self._events.get()
        if isinstance(event, Refusal):
            raise event
        return event

    def put(self, number: int, event: Event) -> None:
        self._events.put_nowait((number, event))

    def fail(self, error: Refusal) -> None:
        """End with an error, after the events that are already queued."""
        self._events.put_nowait(error)
        if not self.accepted.done():
            self.accepted.set_exception(error)

    def accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)


class Worker:
    """Run an engine, which nothing else may call from now on.

    All methods are called from one event loop, and none of them blocks it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._owners: dict[int, tuple[Job, int]] = {}  # by ticket; used by the thread only
        self._jobs: set[Job] = set()  # used by the event loop only: not yet cancelled
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: Any = None
        self.stats: Stats = engine.stats()  # after the last round
        self.failure: Exception | None = None  # what ended the thread
        self.on_failure: Callable[[], None] = lambda: None

    @property
    def open(self) -> int:
        """Number of jobs that were submitted and not cancelled."""
        return len(self._jobs)

    def start(self) -> None:
        """Start, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current round; drop the remaining requests."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, _LAST_ROUND)

    async def submit(self, requests: Sequence[Request]) -> Job:
        """Submit requests, all or none of them.

        A Refusal has status 429 (too many are waiting), 400 (not for this engine) or 500 (it has failed).
        """
        if self.failure is not None:
            raise failed()
        job = Job(requests)
        self._jobs.add(job)
        self._commands.put(functools.partial(self._admit, job))
        try:
            await job.accepted
        except BaseException:
            self.cancel(job)
            raise
        return job

    def cancel(self, job: Job, number: int | None = None) -> None:
        """Cancel one request of a job, or all its remaining ones; their slots are free at once."""
        if number is None:
            self._jobs.discard(job)
        self._commands.put(functools.partial(self._withdraw, job, number))

    def give_up(self) -> None:
        """End the answers in progress, as the server is stopping."""
        for job in self._jobs:
            job.fail(Refusal(503, "the server is stopping and cannot finish the answer", code="stopping"))

    # The rest runs in the thread, except for `_deliver` and `_fail`.

    def _run(self) -> None:
        try:
            while self._obey():
                self._report(self._engine.step())
        except Exception as error:
            logger.exception("the engine failed")
            self._call(self._fail, error)

    def _obey(self) -> bool:
        """Run the commands queued since the last round; wait for one if there is nothing else to do."""
        while True:
            try:
                command = self._commands.get(block=self._engine.idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            self.stats = self._engine.stats()

    def _admit(self, job: Job) -> None:
        tickets: list[int] = []
        try:
            for request in job.requests:
                tickets.append(self._engine.submit(request))
        except (Full, ValueError, TypeError) as error:
            for ticket in tickets:
                self._engine.cancel(ticket)
            self._call(job.fail, _full() if isinstance(error, Full) else Refusal(400, str(error), "prompt"))
            return
        self._owners.update({ticket: (job, number) for number, ticket in enumerate(tickets)})
        self._call(job.accept)

    def _withdraw(self, job: Job, number: int | None) -> None:
        for ticket, (owner, index) in list(self._owners.items()):
            if owner is job and number in (None, index):
                self._engine.cancel(ticket)
                del self._owners[ticket]

    def _report(self, events: Sequence[Event]) -> None:
        self.stats = self._engine.stats()
        news = [(*self._owners[event.ticket], event) for event in events if event.ticket in self._owners]
        for event in events:
            if event.finish is not None:
                self._owners.pop(event.ticket, None)
        if news:
            self._call(self._deliver, news)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing receives it any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _deliver(self, news: Sequence[tuple[Job, int, Event]]) -> None:
        for job, number, event in news:
            if job in self._jobs:
                job.put(number, event)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        for job in self._jobs:
            job.fail(failed())
        self.on_failure()
