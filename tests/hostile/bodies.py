"""Bodies of requests to the server: wrong fields and values, damaged, deep and large JSON.

Each must be answered with 2xx, or with 4xx and one sentence. Nothing may be logged as an error, and a plain
request must get its answer afterwards.
"""

import contextlib
import functools
import importlib.util
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from based_jax.data.chat.template import Chat, ChatTemplate
from based_jax.data.tokenizers import ByteTokenizer
from based_jax.generate import Engine
from based_jax.serve.app import NO_CHAT
from based_jax.serve.fields import Limits
from tests.generate.tiny import make_bytes
from tests.hostile.attack import REFUSALS, Attack
from tests.serve.client import Client, serving

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


def attacks(rng: np.random.Generator, count: int) -> Iterator[Attack]:
    """Yield `count` requests."""
    kinds: tuple[Callable[[np.random.Generator], tuple[str, bytes]], ...] = (_fields, _chat, _json)
    for number in range(count):
        path, body = kinds[number % len(kinds)](rng)
        shown = f"{body[:300]!r}{'...' if len(body) > 300 else ''}"
        yield Attack(f"{path}, {len(body)} bytes: {shown}", functools.partial(_send, path, body))


# What is sent.


def _pick(rng: np.random.Generator, values: tuple[Any, ...]) -> Any:
    return values[rng.integers(len(values))]


def _body(rng: np.random.Generator) -> dict[str, Any]:
    """A good one."""
    return {
        "prompt": _pick(rng, ("a", "def main():", ["a", "b"], [256, 97], "", "€🙂")),
        "max_tokens": int(rng.integers(1, 20)),
        "temperature": float(rng.integers(0, 3)),
        "logprobs": _pick(rng, (None, 0, 5)),
        "stream": bool(rng.integers(2)),
    }


def _fields(rng: np.random.Generator) -> tuple[str, bytes]:
    """Fields with values that they may not have."""
    body = _body(rng) | {_pick(rng, _FIELDS): _pick(rng, _VALUES) for _ in range(rng.integers(1, 4))}
    data = json.dumps(body, ensure_ascii=bool(rng.integers(2))).encode("utf-8", "surrogatepass")
    return "/v1/completions", data


def _chat(rng: np.random.Generator) -> tuple[str, bytes]:
    """As `_fields`, of chat completions."""
    good = {name: value for name, value in _body(rng).items() if name not in ("prompt", "logprobs")}
    body = good | {"messages": [{"role": "user", "content": _pick(rng, ("a", "\0", "€🙂", "a" * 2000))}]}
    body |= {_pick(rng, _FIELDS): _pick(rng, _VALUES) for _ in range(rng.integers(3))}
    return "/v1/chat/completions", json.dumps(body).encode()


def _json(rng: np.random.Generator) -> tuple[str, bytes]:
    """JSON that is damaged, deep or of very many parts."""
    text = json.dumps(_body(rng)).encode()
    many = int(10 ** rng.uniform(1, 5.9))
    fill = _pick(
        rng, (b"[", b"{", b'{"a":', b'"a",', b"[1],", b"[],", b"1,", b"\\", b'"', b"\\u", b" ", b"\0", b'""')
    )
    position = int(rng.integers(len(text) + 1))
    return (
        "/v1/completions",
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
        ),
    )


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
    engine = Engine(*make_bytes(), slots=2, max_waiting=_LIMITS.choices)
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


def _send(path: str, body: bytes) -> None:
    try:
        status, message = _survive(path, body)
    except REFUSALS as error:  # ours, not the server's
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    if status >= 300:
        raise ValueError(f"{status} {message}")


def _survive(path: str, body: bytes) -> tuple[int, str]:
    """Send it, and a plain request before and after it; return its status and the sentence of a refusal."""
    client, logged = _client()
    logged.clear()
    expected = client.text(prompt="a", max_tokens=3)
    response = client.send("POST", path, body)
    assert response.status == 200 or 400 <= response.status < 500, (response.status, response.all[:500])
    assert b'data: {"error"' not in response.all, response.all[-500:]
    assert client.text(prompt="a", max_tokens=3) == expected, "a plain request is answered otherwise"
    client.wait_until_empty()
    assert not logged, logged[0]
    return response.status, "" if response.status == 200 else _sentence(response.all)


def _sentence(body: bytes) -> str:
    message = json.loads(body)["error"]["message"]
    assert message, body
    assert len(message) < 400, f"a message of {len(message)} characters: {message[:100]}"
    assert message.isprintable(), message
    assert "Traceback" not in message, message
    return message
