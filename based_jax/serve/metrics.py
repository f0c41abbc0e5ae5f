"""The metrics that ``/metrics`` reports to Prometheus."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from based_jax.serve.worker import Worker

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
