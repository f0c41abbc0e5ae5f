"""The page at ``/``: one file, with headers that let a browser run only the code in it."""

import base64
import hashlib
import re
from importlib import resources

from starlette.responses import HTMLResponse


def page() -> HTMLResponse:
    """Return the page; its policy names its script and style by their hashes."""
    html = (resources.files("based_jax.serve") / "page.html").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash(html, 'script')}; style-src {_hash(html, 'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return HTMLResponse(html, headers=headers)


def _hash(html: str, element: str) -> str:
    """Return the source expression that allows the only such element."""
    found = re.search(rf"<{element}>(.*?)</{element}>", html, flags=re.S)
    assert found is not None
    digest = hashlib.sha256(found[1].encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
