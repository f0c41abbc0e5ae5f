"""Read the body of a request within limits of size and time, and parse it if it has few enough parts.

Parsing holds Python's global lock, and building a million short lists from 4 MB takes seconds. So the parts
of a body are counted in its bytes first, which takes milliseconds.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.requests import Request

from based_jax.serve.errors import Refusal
from based_jax.serve.limits import Limits

MAX_PARTS = 1000  # lists and objects of a body; also its strings
MAX_DEPTH = 8  # of nested lists and objects

_DISCARD = 16  # times the size limit are read and discarded, so that the client sees the refusal
_BRACKETS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_SHOWN = 60  # characters of a value shown in a message


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body of a request; a Refusal has status 415 (not JSON), 413 (too large) or 408 (too slow)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"content-type = {shorten(kind)}: expected application/json")
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limits.body:
                    body += chunk
                elif size > _DISCARD * limits.body:
                    break
    except TimeoutError:
        message = f"the body was not complete after {limits.body_seconds:g} seconds"
        raise Refusal(408, message, headers={"connection": "close"}) from None
    if size > limits.body:
        message = f"the body is larger than {limits.body} bytes"
        raise Refusal(413, message, headers={"connection": "close"})
    return bytes(body)


def parse(body: bytes) -> Mapping[str, Any]:
    """Parse a body as a JSON object; a Refusal of status 400 if it is not one, or has too many parts."""
    _expect_few_parts(body)
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant)
    except ValueError as error:
        # Python's message about the digits of an integer addresses the server's programmer.
        reason = "an integer has too many digits" if str(error).startswith("Exceeds the limit") else error
        raise Refusal(400, f"the body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body is not a JSON object")
    return value


def shorten(value: Any) -> str:
    """Format a client's value for messages: JSON in ASCII, truncated if long."""
    value = value[: _SHOWN + 1] if isinstance(value, str) else value
    shown = "".join(itertools.islice(json.JSONEncoder().iterencode(value), _SHOWN + 1))
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _expect_few_parts(body: bytes) -> None:
    """Count the parts before parsing; the counts are right up to the first error in the JSON."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")  # the remaining quotes begin and end strings
    if plain.count(b'"') > 2 * MAX_PARTS:
        raise Refusal(400, f"the body has more than {MAX_PARTS} texts, names of fields included")
    brackets = b"".join(plain.split(b'"')[::2]).translate(None, _OTHERS)
    if len(brackets) > 2 * MAX_PARTS:
        raise Refusal(400, f"the body has more than {MAX_PARTS} lists and objects")
    if max(itertools.accumulate(map(_BRACKETS.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise Refusal(400, f"the body is nested too deeply: expected at most {MAX_DEPTH} levels")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
