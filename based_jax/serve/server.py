"""uvicorn's server, with what it serves: it reports when it is ready, and stops if the engine fails."""

import socket
from collections.abc import Callable

import uvicorn

from based_jax.serve.app import Service


class Server(uvicorn.Server):
    """Serve on sockets until a signal or the engine's failure stops the server.

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
            limit_concurrency=connections,
            timeout_graceful_shutdown=drain_seconds,
        )
        super().__init__(config)
        self._ready = ready
        service.worker.on_failure = self._stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def _stop(self) -> None:
        self.should_exit = True
