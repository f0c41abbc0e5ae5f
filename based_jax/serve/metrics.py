"""The metrics that ``/metrics`` reports to Prometheus."""

import asyncio
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from based_jax.serve.worker import Worker

_GAUGES = {
    "waiting": "requests that have not been started",
    "prefilling": "requests whose prompt is being read",
    "running": "requests that have a slot",
    "free": "slots that a request could take",
}
_COUNTERS = {
    "made_tokens": "tokens made",
    "prefilled_tokens": "tokens of prompts that were read",
    "cached_tokens": "tokens of prompts that the prefix cache supplied",
    "finished": "engine requests answered",
    "cancelled": "engine requests cancelled",
}
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)


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
        stats: Any = self._worker.stats
        open_ones = self._worker.open
        yield GaugeMetricFamily("based_jax_open_completions", "completions being answered", value=open_ones)
        for name, meaning in _GAUGES.items():
            yield GaugeMetricFamily(f"based_jax_engine_{name}", meaning, value=getattr(stats, name))
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"based_jax_engine_{name}", meaning, value=getattr(stats, name))


class Clock:
    """The duration of one completion, from its request to its chunks, and its time limit in seconds."""

    def __init__(self, metrics: Metrics, seconds: float) -> None:
        self._now = asyncio.get_running_loop().time
        self._metrics, self._begin, self._waiting = metrics, self._now(), True
        self.seconds, self.deadline = seconds, self._begin + seconds

    def chunk(self) -> None:
        """Record a chunk; only the first one counts."""
        if self._waiting:
            self._metrics.first_chunk.observe(self._now() - self._begin)
            self._waiting = False

    def end(self) -> None:
        self._metrics.answer.observe(self._now() - self._begin)


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
