"""What ``/metrics`` tells Prometheus."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from based_jax.generate.request import Stats

_GAUGES = {
    "waiting": "requests that nothing has been done for",
    "prefilling": "requests whose prompt is being read",
    "running": "requests that have a slot",
    "free": "slots that a request could take",
}
_COUNTERS = {
    "made_tokens": "tokens made",
    "prefilled_tokens": "tokens of prompts that were read",
    "cached_tokens": "tokens of prompts that were read before",
    "finished": "engine requests answered",
    "cancelled": "engine requests taken back",
}
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)


class Metrics:
    """The numbers of one server, apart from any other's in the process.

    Args:
        stats: the engine's, asked for when the numbers are read.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self.registry = CollectorRegistry()
        self.responses = Counter(
            "based_jax_http_responses", "responses begun, by status", ["status"], registry=self.registry
        )
        self.open = Gauge("based_jax_open_completions", "completions being answered", registry=self.registry)
        self.first_piece = Histogram(
            "based_jax_first_piece_seconds", "from a completion's request to the first piece of its answer",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.answer = Histogram(
            "based_jax_answer_seconds", "from a completion's request to the end of its answer",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.registry.register(_EngineMetrics(stats))

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)


class Watch:
    """The time of one completion, from its making to its pieces."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._begin = time.perf_counter()
        self._waiting = True

    def piece(self) -> None:
        """A piece came; the first one counts."""
        if self._waiting:
            self._metrics.first_piece.observe(time.perf_counter() - self._begin)
            self._waiting = False

    def end(self) -> None:
        """The answer is complete."""
        self._metrics.answer.observe(time.perf_counter() - self._begin)


class CountResponses:
    """Middleware: count responses by their status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responses.labels(message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counted)


class _EngineMetrics:
    """The engine's own numbers."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats: Any = self._stats()
        for name, meaning in _GAUGES.items():
            yield GaugeMetricFamily(f"based_jax_engine_{name}", meaning, value=getattr(stats, name))
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"based_jax_engine_{name}", meaning, value=getattr(stats, name))
