"""Read the body of a request within a limit of size, and decode it with msgspec.

msgspec checks types while it parses and stops at the first wrong value. Its reasons are kept; the field and
its value, as the client wrote it, are put before them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from starlette.requests import Request

from based_jax.serve.errors import Refusal

Fields = TypeVar("Fields", bound=msgspec.Struct)

_SHOWN = 60  # characters of a value shown in a message
_REASON = 200  # characters of msgspec's reason, which can contain a client's names
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_PATH = re.compile(r" - at (?:`key` in )?`\$\.(\w+)[^`]*`$")  # at the end of msgspec's messages
_IGNORED = ("user",)


async def read_body(request: Request, most: int) -> bytes:
    """Read the body of a request; a Refusal has status 415 (not JSON) or 413 (more than `most` bytes)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"content-type = {shorten(kind)}: expected application/json")
    body, size = bytearray(), 0
    async for chunk in request.stream():  # to its end, so that the client sees the refusal
        size += len(chunk)
        if size <= most:
            body += chunk
    if size > most:
        raise Refusal(413, f"the body is larger than {most} bytes")
    return bytes(body)


def decode(
    body: bytes, kind: type[Fields], refused: Mapping[str, str], neutral: Mapping[str, Sequence[bytes]]
) -> Fields:
    """Decode a body; a Refusal (status 400) names the first field that is unknown or wrong.

    Args:
        refused: fields of OpenAI's API that are not served -> why.
        neutral: fields -> values by which they ask for nothing, as null does; JSON without spaces.
    """
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except _MALFORMED as error:
        refuse(None, f"the body is not a JSON object: {error}")
    fields = {
        name: raw
        for name, raw in given.items()
        if name not in _IGNORED and _compact(raw) not in (b"null", *neutral.get(name, ()))
    }
    for name in fields:
        if name in refused:
            refuse(name, f"{name} is not supported: {refused[name]}")
        if name not in kind.__struct_fields__:
            param = name if name.isidentifier() and len(name) <= _SHOWN else None
            known = ", ".join(kind.__struct_fields__)
            refuse(param, f"unknown field {shorten(name)}: expected one of {known}")
    try:
        return msgspec.json.decode(msgspec.json.encode(fields), type=kind)
    except _MALFORMED as error:
        reason, path = str(error), _PATH.search(str(error))
        if path is None:
            refuse(None, f"the body is not as expected: {_escape(reason, _REASON)}")
        name = path[1]
        expected = _escape(reason[0].lower() + reason[1 : path.start()], _REASON)
        within = path[0].removesuffix(f" - at `$.{name}`")
        refuse(name, f"{name} = {shorten(fields[name])}: {expected}{within}")


def shorten(value: Any) -> str:
    """Format a client's value for messages: JSON in ASCII, truncated if long."""
    if isinstance(value, msgspec.Raw):
        return _escape(bytes(value)[: 4 * _SHOWN + 4].decode("utf-8", "replace"), _SHOWN)
    return _escape(json.dumps(value[: _SHOWN + 1] if isinstance(value, str) else value), _SHOWN)


def refuse(param: str | None, message: str, code: str | None = None) -> NoReturn:
    raise Refusal(400, message, param=param, code=code)


def _escape(text: str, most: int) -> str:
    plain = "".join(
        letter if letter.isprintable() and letter.isascii() else ascii(letter)[1:-1]
        for letter in text[: most + 1]
    )
    return plain if len(plain) <= most else f"{plain[:most]}..."


def _compact(raw: msgspec.Raw) -> bytes:
    return bytes(raw).translate(None, b" \t\r\n")
