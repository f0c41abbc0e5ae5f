"""Check the names by which clients call the server, so that a web page of another site cannot use it.

A site can make its own name resolve to this server's address after its page is loaded (DNS rebinding). The
browser then lets the page read the server's answers, but its requests still name the site as their host.
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from based_jax.serve.errors import Refusal
from based_jax.serve.fields import shorten


class KnownHosts:
    """Middleware: refuse requests whose Host header is not one of the server's names.

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
