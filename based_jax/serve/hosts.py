"""Check the names by which clients call the server, so that a web page of another site cannot use it.

A site can make its own name resolve to this server's address after its page is loaded (DNS rebinding). The
browser then treats the server's answers as the site's own and lets the page read them. Its requests still
carry the site's name in their Host header.
"""

import contextlib
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from based_jax.serve.body import shorten
from based_jax.serve.errors import Refusal

_LOCAL = ("localhost", "*.localhost")


class KnownHosts:
    """Middleware: refuse requests whose Host header is not one of the server's names.

    IP addresses are accepted, since no site has one as its name, and so are requests without the header,
    which every browser sends. starlette's TrustedHostMiddleware cannot accept all addresses and answers in
    plain text. `names` are accepted besides this machine's; ``*.example.com`` is every name with that ending,
    ``*`` any.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app = app
        self._names = [name.lower() for name in (*_LOCAL, *names)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or self.knows(host):
            await self._app(scope, receive, send)
            return
        message = f"host = {shorten(host)}: expected localhost, an IP address or a name of --allowed-hosts"
        await Refusal(421, message, code="unknown_host").response()(scope, receive, send)

    def knows(self, host: str) -> bool:
        """Return whether a Host header is one of the server's names or an address, with any port."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:  # an unfinished IPv6 address
            return False
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return any(
            name.endswith(known[1:]) if known.startswith("*") else name == known for known in self._names
        )
