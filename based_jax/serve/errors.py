"""Error responses in OpenAI's format: ``{"error": {"message", "type", "param", "code"}}``."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

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


async def on_refusal(request: Request, error: Any) -> Response:
    return error.response()


async def on_http(request: Request, error: Any) -> Response:
    """Answer requests that the router refuses: unknown paths and methods."""
    path = request.scope["raw_path"].decode("ascii")[:60]  # still encoded, so without control characters
    message = f"{request.method[:20]} {path}: {error.detail}"
    if error.status_code == 404 and path.startswith("/v1/"):
        message += f": not served; {_SERVED}"
    return Refusal(error.status_code, message, headers=error.headers).response()


async def on_gone(request: Request, error: Any) -> Response:
    """Answer a client that has disconnected: only the metrics count it."""
    return Response(status_code=499)


async def on_bug(request: Request, error: Any) -> Response:
    """Answer a request on which the server failed; the server logs the error."""
    return Refusal(500, "the server failed on this request", code="internal_error").response()


HANDLERS: Any = {
    Refusal: on_refusal,
    HTTPException: on_http,
    ClientDisconnect: on_gone,
    Exception: on_bug,
}
