"""Requests to the server: bodies, heads, paths, and bytes that are no HTTP.

Each must be answered with 2xx, or with 4xx and one sentence. Nothing may be logged as an error, and a plain
request must get its answer afterwards.
"""

import contextlib
import functools
import http.client
import importlib.util
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from based_jax.data.chat.template import Chat, ChatTemplate
from based_jax.data.tokenizers import ByteTokenizer
from based_jax.generate import Engine
from based_jax.serve.app import NO_CHAT
from based_jax.serve.limits import Limits
from tests.hostile.attack import REFUSALS, Attack
from tests.serve.client import Client, serving
from tests.serve.conftest import byte_model

SECONDS = 10.0

_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
_LIMITS = Limits(length=400, max_tokens=64, choices=16)
_RUNNING = contextlib.ExitStack()
_LOGGERS = ("", "uvicorn.error")  # the latter does not pass its records on
_FIELDS = (
    "prompt", "max_tokens", "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "seed",
    "stop", "frequency_penalty", "repetition_penalty", "logprobs", "echo", "stream", "stream_options",
    "model", "user", "suffix", "logit_bias", "best_of", "messages", "top_logprobs", "tools", "",
    "\ud800", "prompt\0", "a" * 5000,
    "__proto__",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 5, 16, 1e-308, 1e308, -1e308, 5e-324, -0.0, 0.5, 2**31, 2**63,
    -(2**63), 2**64, 10**400, -(10**400), 10**4299, float("nan"), float("inf"), "", "a", "\0", "\ud800",
    "\udc00\ud800", "\ufeff", "🙂", "a" * 399, "a" * 20_000, "\n" * 300, "1", [], {}, [[]], [{}],
    ["a"] * 17, ["a", 1], [1, 2], [[1], [2, 3]], [257], [-1], [10**30], [1.0], [True], [256] * 399,
    [1] * 50_000, ["\ud800"], [None], {"include_usage": True}, {"include_usage": 1}, {"\ud800": 1},
    {"a": {"b": {}}}, {"5": -100, "256": 1e308}, {"300": 1}, {"05": 1}, dict.fromkeys(range(400), 1),
    [{"role": "user", "content": "a"}], [{"role": "\ud800", "content": "a" * 20_000}] * 40,
    [{"role": "user", "content": [{"type": "text", "text": "\0"}]}], [{"role": 1, "content": None}],
)  # fmt: skip
_PATHS = (
    "/", "/health", "/metrics", "/v1/models", "/v1/models/tiny", "/v1/completions",
    "/v1/chat/completions", "*", "/health/", "//health", "/v1/models/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/%0d%0aa:%20b", "/%ed%a0%80", "/%ff%fe",
    "http://attacker.example/", "/v1/models/" + "%2f" * 500, "/" + "a" * 30_000, "/[", "/?",
    "/health?" + "a=b&" * 1000, "/v1/models?%ff", "/v1/models/{name}", "/#", "localhost:1",
)  # fmt: skip
_METHODS = (
    "GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "PATCH", "get", "X" * 3000,
    "é", "",
)  # fmt: skip
_HEADS = (
    "host: attacker.example", "host: [", "host: [::1]:99", "host:", "host: \xff", "host: a\r\nhost: b",
    "host : a", "content-type: text/plain", "content-type: application/json; charset=utf-16",
    "content-type:", "content-type: \xff", "content-length: -1", "content-length: 0",
    "content-length: 1e3", "content-length: 99999999999999999999",
    "content-length: 3\r\ncontent-length: 4", "content-length: 5", "transfer-encoding: chunked",
    "transfer-encoding: gzip", "transfer-encoding: chunked, chunked", "content-encoding: gzip",
    "expect: 100-continue", "expect: what", "connection: close",
    "connection: upgrade\r\nupgrade: websocket", "upgrade: h2c", "authorization: Bearer " + "a" * 5000,
    "authorization: Bearer \xff", "cookie: " + "a=b; " * 500, "range: bytes=0-0,1-1,5-",
    "if-none-match: *", "accept: \0", "x: a\r\n b", ": empty", "no colon", "x" * 70_000,
    "x-forwarded-host: attacker.example", "x-forwarded-for: 1.2.3.4", "accept-encoding: gzip",
    "x: a\nhost: b",
)  # fmt: skip
_CHUNKS = (
    b"5\r\n{}   \r\n0\r\n\r\n", b"2\r\n{}\r\n0\r\nx: y\r\n\r\n", b"zz\r\n", b"-1\r\n", b"f" * 30,
    b"1\r\n \r\n" * 100_000,
)  # fmt: skip


def attacks(rng: np.random.Generator, count: int) -> Iterator[Attack]:
    """Yield `count` requests."""
    kinds: tuple[Callable[[np.random.Generator], bytes], ...] = (_fields, _chat, _json, _head, _line, _bytes)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        data = kind(rng)
        shown = f"{data[:300]!r}{'...' if len(data) > 300 else ''}"
        ends = kind in (_fields, _chat) and bool(
            rng.integers(2)
        )  # others may lack a part that the server waits for
        what = f"{kind.__name__[1:]}{', half-closed' if ends else ''}, {len(data)} bytes: {shown}"
        yield Attack(what, functools.partial(_send, data, ends))


# What is sent.


def _pick(rng: np.random.Generator, values: tuple[Any, ...]) -> Any:
    return values[rng.integers(len(values))]


def _request(body: bytes, *heads: str, method: str = "POST", path: str = "/v1/completions") -> bytes:
    names = [head.partition(":")[0] for head in heads]
    usual = ("host: localhost", "content-type: application/json", f"content-length: {len(body)}")
    lines = [
        f"{method} {path} HTTP/1.1",
        *(line for line in usual if line.partition(":")[0] not in names),
        *heads,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _body(rng: np.random.Generator) -> dict[str, Any]:
    """A good one."""
    return {
        "prompt": _pick(rng, ("a", "def main():", ["a", "b"], [256, 97], "", "€🙂")),
        "max_tokens": int(rng.integers(1, 20)),
        "temperature": float(rng.integers(0, 3)),
        "logprobs": _pick(rng, (None, 0, 5)),
        "stream": bool(rng.integers(2)),
    }


def _fields(rng: np.random.Generator) -> bytes:
    """Fields with values that they may not have."""
    body = _body(rng) | {_pick(rng, _FIELDS): _pick(rng, _VALUES) for _ in range(rng.integers(1, 4))}
    return _request(json.dumps(body, ensure_ascii=bool(rng.integers(2))).encode("utf-8", "surrogatepass"))


def _chat(rng: np.random.Generator) -> bytes:
    """As `_fields`, of chat completions."""
    good = {name: value for name, value in _body(rng).items() if name not in ("prompt", "logprobs")}
    body = good | {"messages": [{"role": "user", "content": _pick(rng, ("a", "\0", "€🙂", "a" * 2000))}]}
    body |= {_pick(rng, _FIELDS): _pick(rng, _VALUES) for _ in range(rng.integers(3))}
    return _request(json.dumps(body).encode(), path="/v1/chat/completions")


def _json(rng: np.random.Generator) -> bytes:
    """JSON that is damaged, deep or of very many parts."""
    text = json.dumps(_body(rng)).encode()
    many = int(10 ** rng.uniform(1, 5.9))
    fill = _pick(
        rng, (b"[", b"{", b'{"a":', b'"a",', b"[1],", b"[],", b"1,", b"\\", b'"', b"\\u", b" ", b"\0", b'""')
    )
    position = int(rng.integers(len(text) + 1))
    return _request(
        _pick(
            rng,
            (
                _mutated(rng, text),
                text[:position],
                text[:position] + fill * many + text[position:],
                b'{"prompt": [' + (fill * many).rstrip(b",") + b"]}",
                b"\xef\xbb\xbf" + text,
                text.decode().encode("utf-16"),
                b'{"prompt": ' + b"1" * many + b"}",
                b'{"prompt": "' + b"a" * many + b'"}',
                b"[" * (many // 2) + b"]" * (many // 2),
            ),
        )
    )


def _head(rng: np.random.Generator) -> bytes:
    """Header lines."""
    heads = [_pick(rng, _HEADS) for _ in range(rng.integers(1, 4))]
    body = json.dumps(_body(rng)).encode()
    if any("chunked" in head for head in heads) and rng.integers(2):
        body = _pick(rng, _CHUNKS)
    return _request(body, *heads, path=_pick(rng, ("/v1/completions", "/v1/models", "/health")))


def _line(rng: np.random.Generator) -> bytes:
    """Methods, paths and versions."""
    body = json.dumps(_body(rng)).encode() if rng.integers(2) else b""
    data = _request(body, method=_pick(rng, _METHODS), path=_pick(rng, _PATHS))
    version = _pick(rng, (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 ", b""))
    return data.replace(b"HTTP/1.1", version, 1)


def _bytes(rng: np.random.Generator) -> bytes:
    """A good request with a few bytes changed, or several one after the other."""
    good = [_request(json.dumps(_body(rng)).encode()) for _ in range(rng.integers(1, 4))]
    return _mutated(rng, b"".join(good))


def _mutated(rng: np.random.Generator, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        position, length = int(rng.integers(len(made) + 1)), int(rng.integers(1, 9))
        made[position : position + _pick(rng, (0, 1, length))] = _pick(
            rng, (rng.bytes(length), b"", bytes(made[:length]))
        )
    return bytes(made)


# What comes back.


@functools.cache
def _client() -> tuple[Client, list[str]]:
    """A server of a tiny model, which runs until the process is killed, and what was logged."""
    engine = Engine(*byte_model(), slots=2, max_waiting=_LIMITS.choices)
    engine.warm_up()
    chat: Chat | str = NO_CHAT
    if importlib.util.find_spec("jinja2"):
        chat = Chat(ChatTemplate(_TEMPLATE, {}), ByteTokenizer())
    client = _RUNNING.enter_context(serving(engine, _LIMITS, chat=chat))
    logged: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(self.format(record))

    for name in _LOGGERS:
        logging.getLogger(name).addHandler(Keep(logging.ERROR))
    return client, logged


def _send(data: bytes, ends: bool) -> None:
    try:
        status, message = _survive(data, ends)
    except REFUSALS as error:  # ours, not the server's
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    if status >= 300:
        raise ValueError(f"{status} {message}")


def _survive(data: bytes, ends: bool) -> tuple[int, str]:
    """Send it, and a plain request before and after it; `ends` closes the client's side after it."""
    client, logged = _client()
    logged.clear()
    expected = client.text(prompt="a", max_tokens=3)
    answer = _answer(client, data, ends)
    assert client.text(prompt="a", max_tokens=3) == expected, "a plain request is answered otherwise"
    client.wait_until_empty()
    assert not logged, logged[0]
    return answer


def _answer(client: Client, data: bytes, ends: bool) -> tuple[int, str]:
    """The status of the first answer, and the sentence of a refusal; all answers are checked."""
    with client.raw(b"") as connection:
        connection.settimeout(SECONDS)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(connection, method=data.partition(b" ")[0].decode("latin-1"))
        try:
            response.begin()
        except (http.client.BadStatusLine, ConnectionError):
            assert not re.search(rb"\n\r?\n", data), "a complete head got no answer"
            return 408, "the connection was cut"
        status, body = response.status, response.read()
        assert 200 <= status < 300 or 400 <= status < 500, f"status {status}: {body[:500]!r}"
        assert b'data: {"error"' not in body, body[-500:]
        message = "" if status < 300 or not body else _sentence(body)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            rest = connection.makefile("rb").read()
            assert not re.search(rb"HTTP/1.1 (5|3)\d\d ", rest), rest[:500]
    return status, message


def _sentence(body: bytes) -> str:
    message = json.loads(body)["error"]["message"]
    assert message, body
    assert len(message) < 400, f"a message of {len(message)} characters: {message[:100]}"
    assert message.isprintable(), message
    assert "Traceback" not in message, message
    return message
