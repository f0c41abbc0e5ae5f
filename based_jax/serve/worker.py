"""Run the engine in its own thread: the event loop submits requests and receives their events.

The engine computes for long stretches and has no locks, so only this thread touches it. It takes commands
from a queue between two rounds; it sends the events to the event loop in one call per round.
"""

import asyncio
import collections
import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from based_jax.generate.engine import Engine
from based_jax.generate.engine.request import Event, Full, Request, Stats

logger = logging.getLogger(__name__)

CAPACITY = 1024
"""most unread events per request of a job; with more the job is cancelled"""
_LAST_ROUND = 30.0  # seconds for the thread to end


class Failed(RuntimeError):
    """The engine's thread has ended with an error: nothing is generated any more."""


class SlowReader(RuntimeError):
    """Events were not read while many more arrived."""


class Job:
    """Requests that belong together, as the event loop uses them; made by `Worker.submit`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events: collections.deque[tuple[int, Event]] = collections.deque()
        self._news = asyncio.Event()
        self._error: Exception | None = None

    async def next(self) -> tuple[int, Event]:
        """Return the next event, with its request's number; Failed or SlowReader if there are no more."""
        await self.ready()
        if not self._events and self._error is not None:
            raise self._error
        return self._events.popleft()

    async def ready(self) -> None:
        """Wait until `next` would not block."""
        while not self._events and self._error is None:
            self._news.clear()
            await self._news.wait()

    def put(self, number: int, event: Event) -> bool:
        """Add an event; return False if too many are unread."""
        if len(self._events) >= CAPACITY * len(self.requests):
            self.fail(SlowReader(f"the answer was not read: {len(self._events)} chunks of it were waiting"))
            return False
        self._events.append((number, event))
        self._news.set()
        return True

    def fail(self, error: Exception) -> None:
        """End with an error, after the events that are already queued."""
        self._error = self._error or error
        self._news.set()
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
        self._jobs: set[Job] = set()  # used by the event loop only
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: Any = None
        self.stats: Stats = engine.stats()  # after the last round
        self.failure: Exception | None = None  # what ended the thread

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

        Full: too many are waiting. ValueError: not for this engine. Failed: the engine has failed.
        """
        if self.failure is not None:
            raise Failed(str(self.failure))
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
            self._call(job.fail, error)
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
            if job in self._jobs and not job.put(number, event):
                self.cancel(job)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        for job in self._jobs:
            job.fail(Failed(str(error)))
