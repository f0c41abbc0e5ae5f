"""Read a request's body, and the fields that completions and chat completions share.

Names, meanings and defaults are OpenAI's; `top_k`, `min_p` and `repetition_penalty` are added, as in other
servers. msgspec checks types while it parses and stops at the first wrong value. Its reasons are kept; the
field and its value, as the client wrote it, are put before them. Errors have OpenAI's format,
``{"error": {"message", "type", "param", "code"}}``.
"""

import dataclasses
import functools
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NoReturn, Self

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine.request import Request
from based_jax.generate.sampling import Sampler

MAX_CHARACTERS = 32  # of a prompt per token that it may have: checked before tokenizing
TOO_LONG = "context_length_exceeded"

Count = Annotated[int, Meta(ge=1)]
Token = Annotated[int, Meta(ge=0)]
TopTokens = Annotated[int, Meta(ge=0, le=5)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]

MAX_LOGPROBS = 5

_SHOWN = 60  # characters of a value shown in a message
_REASON = 200  # characters of msgspec's reason, which can contain a client's names
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_PATH = re.compile(r" - at (?:`key` in )?`\$\.(\w+)[^`]*`$")  # at the end of msgspec's messages
_IGNORED = ("user",)

_ALL = {"top_k": (-1, 0), "min_p": (0,)}  # values by which clients of other servers disable them

_SERVED = (
    "POST /v1/completions continues a text, POST /v1/chat/completions a conversation, "
    "GET /v1/models names the model"
)


class Refusal(Exception):
    """The reason why a request is not answered.

    Args:
        message: one sentence for the client.
        param: the field that is wrong.
        code: a short name that programs can test for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 429 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


async def on_refusal(request: HttpRequest, error: Any) -> Response:
    return error.response()


async def on_http(request: HttpRequest, error: Any) -> Response:
    """Answer requests that the router refuses: unknown paths and methods."""
    path = request.scope["raw_path"].decode("ascii")[:60]  # still encoded, so without control characters
    message = f"{request.method[:20]} {path}: {error.detail}"
    if error.status_code == 404 and path.startswith("/v1/"):
        message += f": not served; {_SERVED}"
    return Refusal(error.status_code, message, headers=error.headers).response()


async def on_gone(request: HttpRequest, error: Any) -> Response:
    """Answer a client that has disconnected: only the metrics count it."""
    return Response(status_code=499)


async def on_bug(request: HttpRequest, error: Any) -> Response:
    """Answer a request on which the server failed; the server logs the error."""
    return Refusal(500, "the server failed on this request", code="internal_error").response()


HANDLERS: Any = {
    Refusal: on_refusal,
    HTTPException: on_http,
    ClientDisconnect: on_gone,
    Exception: on_bug,
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on one request, which bound the server's memory and the time of an answer."""

    length: int  # tokens of a prompt and its answer together
    max_tokens: int  # tokens of an answer
    choices: int  # answers to one request: prompts times n
    body: int = 4 * 2**20  # bytes of a request's body
    answer_seconds: float = 600.0  # for a whole answer, waiting included


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None


class SharedFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request as its client wrote it, without the fields that are null."""

    refused: ClassVar[Mapping[str, str]] = {}
    """fields of OpenAI's API that are not served -> why"""
    neutral: ClassVar[Mapping[str, Sequence[bytes]]] = {}
    """fields that are refused or unknown -> the values by which they ask for nothing; JSON without spaces"""

    model: str | None = None
    n: Count = 1
    stop: Stop | Annotated[tuple[Stop, ...], Meta(max_length=16)] = ()
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = msgspec.field(
        default_factory=functools.partial(secrets.randbits, 31)
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Read JSON; a Refusal (status 400) names the first field that is unknown or wrong."""
        try:
            given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except _MALFORMED as error:
            refuse(None, f"the body is not a JSON object: {error}")
        fields = {
            name: raw
            for name, raw in given.items()
            if name not in _IGNORED and _compact(raw) not in (b"null", *cls.neutral.get(name, ()))
        }
        for name in fields:
            if name in cls.refused:
                refuse(name, f"{name} is not supported: {cls.refused[name]}")
            if name not in cls.__struct_fields__:
                param = name if name.isidentifier() and len(name) <= _SHOWN else None
                known = ", ".join(cls.__struct_fields__)
                refuse(param, f"unknown field {shorten(name)}: expected one of {known}")
        try:
            return msgspec.json.decode(msgspec.json.encode(fields), type=cls)
        except _MALFORMED as error:
            reason, path = str(error), _PATH.search(str(error))
            if path is None:
                refuse(None, f"the body is not as expected: {_escape(reason, _REASON)}")
            name = path[1]
            expected = _escape(reason[0].lower() + reason[1 : path.start()], _REASON)
            within = path[0].removesuffix(f" - at `$.{name}`")
            refuse(name, f"{name} = {shorten(fields[name])}: {expected}{within}")

    def __post_init__(self) -> None:
        if self.stream_options and not self.stream:
            refuse("stream_options", "stream_options: expected only with stream = true")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def echoed(self, number: int, tokenizer: Tokenizer) -> str:
        """Return the text to send before answer `number`."""
        return ""

    def sampler(self) -> Sampler:
        """Return the sampler; a setting out of its range is refused."""
        given: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(Sampler)
        }
        given |= {name: None for name, values in _ALL.items() if given[name] in values}
        try:
            return Sampler(**given)
        except ValueError as error:
            refuse(str(error).partition(" = ")[0], str(error))

    def copies(self, request: Request) -> list[Request]:
        """Return a prompt's requests: answer i is sampled with seed + i."""
        return [dataclasses.replace(request, seed=(self.seed + i) % 2**32) for i in range(self.n)]


def expect_served(n: int, prompts: int, max_tokens: int, limits: Limits) -> None:
    """Refuse more answers to one request, or more tokens of one, than the server makes."""
    if prompts * n > limits.choices:
        refuse("n", f"{prompts} prompts times n = {shorten(n)}: at most {limits.choices} answers")
    if max_tokens > limits.max_tokens:
        given = f"max_tokens = {shorten(max_tokens)}"
        refuse("max_tokens", f"{given}: expected at most {limits.max_tokens}")


def expect_short(param: str, what: str, count: int, most: int, suffix: str = "") -> None:
    """Refuse a prompt that is longer than the model may read."""
    if count > most:
        refuse(param, f"{what}: expected at most {most}{suffix}", TOO_LONG)


async def read_body(request: HttpRequest, most: int) -> bytes:
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
