"""Whatever is wrong with a request is said, in OpenAI's shape, and costs the server nothing."""

import http.client
import json
import logging
import socket
import time
from typing import Any

import pytest

from based_jax.serve.completion_request import CompletionRequest
from based_jax.serve.errors import Refusal
from based_jax.serve.hosts import KnownHosts
from based_jax.serve.limits import Limits
from tests.patience import PATIENCE
from tests.serve.client import JSON, post_bytes, read_events, serving
from tests.serve.conftest import LIMITS


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"max_token": 3}, "max_token", 'unknown field "max_token"'),
        ({"best_of": 1, "n": 2}, "best_of", "best_of = 1: expected at least n = 2"),
        ({"best_of": 2, "stream": True}, "best_of", "best_of = 2: expected n with stream"),
        ({"suffix": "a"}, "suffix", "suffix is not supported: the model has not learned to fill in"),
        ({"logit_bias": []}, "logit_bias", "logit_bias: expected an object"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "logit_bias: expected an object"),
        ({"logit_bias": {"05": 1}}, "logit_bias", "logit_bias: expected an object"),
        ({"logit_bias": {"5": "1"}}, "logit_bias", "expected numbers from -100 to 100"),
        ({"logit_bias": {"5": 101}}, "logit_bias", 'logit_bias = "101": expected numbers from -100 to 100'),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias", "expected tokens"),
        ({"logit_bias": dict.fromkeys(range(301), 1)}, "logit_bias", "expected at most 300 tokens"),
        ({"prompt": 3}, "prompt", "prompt: expected a text"),
        ({"prompt": []}, "prompt", "prompt: expected a text"),
        ({"prompt": ["a", 1]}, "prompt", "prompt: expected a text"),
        ({"prompt": [[1], []]}, "prompt", "prompt: expected a text"),
        ({"prompt": [True]}, "prompt", "prompt: expected a text"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens = -1: expected an integer, at least 0"),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens = 1.5: expected an integer"),
        ({"max_tokens": True}, "max_tokens", "max_tokens = true: expected an integer"),
        ({"n": 0}, "n", "n = 0: expected"),
        ({"temperature": -1}, "temperature", "temperature = -1: expected"),
        ({"temperature": "warm"}, "temperature", 'temperature = "warm": expected a number'),
        ({"temperature": 1e400}, None, "Infinity is not JSON"),
        ({"top_p": 0}, "top_p", "top_p = 0: expected"),
        ({"top_k": 0.5}, "top_k", "top_k = 0.5: expected"),
        ({"seed": 2**63}, "seed", "seed = 9223372036854775808: expected"),
        ({"logprobs": 6}, "logprobs", "logprobs = 6: expected an integer, from 0 to 5"),
        ({"stop": ""}, "stop", "stop: expected"),
        ({"stop": ["a"] * 17}, "stop", "stop: expected"),
        ({"stop": [1]}, "stop", "stop: expected"),
        ({"stream": "yes"}, "stream", 'stream = "yes": expected true or false'),
        ({"stream_options": {"include_usage": True}}, "stream_options", "expected only with stream"),
        ({"stream": True, "stream_options": {"a": 1}}, "stream_options", "include_usage alone"),
        ({"model": 1}, "model", "model = 1: expected a text"),
        ({"temperature": 10**400}, "temperature", f"temperature = 1{'0' * 59}...: expected a finite number"),
        ({"presence_penalty": -(10**400)}, "presence_penalty", "000...: expected a number from -1e+20"),
        ({"frequency_penalty": 10**400}, "frequency_penalty", "000...: expected a number from -1e+20"),
        ({"repetition_penalty": 10**400}, "repetition_penalty", "000...: expected a number from 1e-20"),
        ({"repetition_penalty": 1e-308}, "repetition_penalty", "= 1e-308: expected a number from 1e-20"),
        ({"top_p": 10**400}, "top_p", "000...: expected"),
        ({"a" * 100: 1}, None, f'unknown field "{"a" * 59}...: expected one of model'),
        ({"\ud800": 1}, None, 'unknown field "\\ud800": expected one of model'),
        ({"model": ["a" * 100]}, "model", f'model = ["{"a" * 58}...: expected a text'),
        ({"max_tokens": [[[[[[[[1]]]]]]]]}, None, "nested too deeply: expected at most 8 levels"),
        ({"prompt": [[1]] * 1000}, None, "more than 1000 lists and objects"),
        ({"prompt": ["a"] * 1000}, None, "more than 1000 texts"),
        ({"stop": "\ud800"}, "stop", "stop: expected"),
        ([], None, "not a JSON object"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies(body, param, message):
    with pytest.raises(Refusal) as raised:
        CompletionRequest.read(json.dumps(body).encode())
    assert raised.value.status == 400
    assert raised.value.param == param
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON: Expecting value"),
        (b"{", "not JSON: Expecting property name"),
        (b'{"a": NaN}', "not JSON: NaN is not JSON"),
        (b"\xff", "not JSON: 'utf-8' codec"),
        ("{}".encode("utf-16"), "not JSON: 'utf-8' codec"),
        (b"1" * 5000, "not JSON: an integer has too many digits"),
        (b"[" * 100_000, "more than 1000 lists"),
        (b"[" * 900, "too deeply"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bodies_that_are_no_json(body, message):
    with pytest.raises(Refusal, match=message):
        CompletionRequest.read(body)


def test_brackets_and_quotes_in_texts_are_no_lists():
    prompt = '["\\' * 3000
    assert CompletionRequest.read(json.dumps({"prompt": prompt}).encode()).prompts == (prompt,)


def test_long_texts_are_refused_before_they_are_tokenized():
    asked = CompletionRequest.read(json.dumps({"prompt": "a" * 641, "max_tokens": 1}).encode())
    tokenizer: Any = None
    with pytest.raises(Refusal, match=r"^a prompt of 641 characters: expected at most 640$") as raised:
        asked.requests(tokenizer, 257, LIMITS.__class__(length=20, max_tokens=20, choices=4))
    assert raised.value.code == "context_length_exceeded"


def test_null_is_the_default():
    asked = CompletionRequest.read(
        b'{"max_tokens": null, "best_of": null, "top_k": -1, "min_p": 0, "seed": -1}'
    )
    assert asked.max_tokens == 16
    assert asked.sampler.temperature == 1
    assert asked.sampler.top_k is asked.sampler.min_p is None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": [257]}, "prompt", "prompt = 257: expected tokens in [0, 257)"),
        ({"prompt": [3, -1, 4]}, "prompt", "prompt = -1: expected tokens in [0, 257)"),
        ({"\ud800": 1}, None, 'unknown field "\\ud800"'),
        ({"prompt": "\ud800"}, "prompt", "prompt: 'utf-8' codec"),
        ({"n": 17}, "n", "at most 16 answers"),
        ({"n": 10**400}, "n", "000...: at most 16 answers"),
        ({"max_tokens": 10**400}, "max_tokens", "000...: expected at most 200000"),
        ({"prompt": ["a"] * 6, "n": 3}, "n", "at most 16 answers"),
        ({"prompt": ["a"] * 6, "best_of": 3}, "best_of", "6 prompts times best_of = 3: at most 16 answers"),
        ({"max_tokens": 10**6}, "max_tokens", "expected at most 200000"),
        ({"logit_bias": {"257": 1}}, "logit_bias", "logit_bias = 257: expected tokens in [0, 257)"),
        ({"prompt": "a", "max_tokens": 200_000, "n": 17}, "n", "at most 16"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_this_server_cannot_do(client, body, param, message):
    error = client.error(body)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]


def test_long_prompts(make_engine):
    with serving(make_engine(), LIMITS.__class__(length=20, max_tokens=20, choices=4)) as client:
        error = client.error({"prompt": "abcd", "max_tokens": 16})
        assert error["code"] == "context_length_exceeded"
        assert "5 tokens and max_tokens = 16: expected at most 20 together" in error["message"]
        client.complete(prompt="abc", max_tokens=16)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/nowhere", {}, 404),
        ("GET", "/health/", {}, 404),
        ("POST", "/v1/completions/", {}, 404),
        ("GET", "/v1/models/" + "a" * 100, {}, 404),
        ("GET", "/%0d%0aa", {}, 404),
        ("X" * 1000, "/" + "a" * 1000, {}, 404),
        ("GET", "/v1/completions", {}, 405),
        ("GET", "/v1/chat/completions", {}, 405),
        ("POST", "/v1/chat/completions", {}, 400),
        ("POST", "/v1/completions", {"content_type": "text/plain"}, 415),
        ("POST", "/v1/completions", {"content_type": "application/json; charset=utf-8"}, 400),
    ],
)
def test_paths_and_types(client, method, path, headers, status):
    response = client.send(method, path, b"", **headers)
    assert response.status == status
    error = json.loads(response.all)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 300
    assert error["message"].isprintable()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/chat/other", "not served"),
        ("/v1/responses", "keeps no conversations"),
        ("/v1/embeddings", "makes no embeddings"),
        ("/v1/images/generations", "not served"),
    ],
)
def test_what_is_not_served_says_what_is(client, path, reason):
    response = client.send("POST", path, {"model": "tiny"})
    assert response.status == 404
    message = json.loads(response.all)["error"]["message"]
    assert message.startswith(f"POST {path}: Not Found: ")
    assert reason in message
    assert "; POST /v1/completions continues a text, POST /v1/chat/completions a conversation" in message
    assert message.endswith(", GET /v1/models names the model")


@pytest.mark.parametrize("name", ["other", "\ud800", "a" * 100])
def test_other_models(client, name):
    error = client.error({"model": name}, 404)
    assert error["code"] == "model_not_found"
    assert len(error["message"]) < 100


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost.:80", 200),
        ("a.localhost:8000", 200),
        ("127.0.0.1:1", 200),
        ("192.0.2.1", 200),
        ("[::1]:8000", 200),
        ("attacker.example", 421),
        ("localhost.attacker.example", 421),
        ("127.0.0.1.attacker.example:8000", 421),
        ("notlocalhost", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_names_of_the_server(client, host, status):
    for path in ("/", "/health", "/metrics", "/v1/models", "/nowhere"):
        response = client.get(path, host=host)
        assert response.status == (404 if (path, status) == ("/nowhere", 200) else status)
        if status == 421:
            message = json.loads(response.all)["error"]["message"]
            assert message.startswith(f"host = {json.dumps(host)}: expected localhost, an IP address or")


def test_more_names_of_the_server():
    app: Any = None
    hosts = KnownHosts(app, ["Proxy.example", "*.lan"])
    for host, known in (
        ("proxy.example:443", True),
        ("a.proxy.example", False),
        ("a.lan", True),
        ("a.b.lan:1", True),
        ("lan", False),
        ("alan", False),
        ("localhost", True),
    ):
        assert hosts.knows(host) == known, host
    assert KnownHosts(app, ["*"]).knows("anything")


def test_a_client_without_a_name_for_the_server(client):
    with client.raw(b"GET /health HTTP/1.0\r\n\r\n") as connection:
        assert b" 200 " in connection.recv(1000).splitlines()[0]


def test_large_bodies(client):
    body = {"prompt": "a" * 30_000}
    assert client.error(body, 413)["message"] == "the body is larger than 20000 bytes"
    endless = post_bytes({}).replace(b"content-length: 2", b"content-length: 9999999") + b" " * 400_000
    with client.raw(endless) as connection:
        assert b" 413 " in connection.recv(1000).splitlines()[0]


@pytest.mark.release
def test_slow_bodies(client):
    """One that comes byte by byte, and a large one that never ends."""
    large = post_bytes({"prompt": "a" * 30_000})[:-1]
    with client.raw(post_bytes({"prompt": "abc"})[:-5]) as connection, client.raw(large) as other:
        begin = time.monotonic()
        for _ in range(3):
            time.sleep(0.1)
            connection.sendall(b" ")
        answer = b""
        while b'"error"' not in answer:  # head and body may come one after the other
            chunk = connection.recv(1000)
            assert chunk, answer
            answer += chunk
        assert b" 408 " in answer.splitlines()[0]
        assert b" 408 " in other.recv(1000).splitlines()[0]
        assert time.monotonic() - begin < Limits.body_seconds


def test_requests_that_are_no_http(client, caplog):
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    with client.raw(b"\x16\x03\x01 hello\r\n\r\n") as connection:
        assert b" 400 " in connection.recv(1000).splitlines()[0]
    with client.raw(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 3000) as connection:
        assert b" 400 " in connection.recv(1000).splitlines()[0]
    # The refusal of the head is on its way when the body turns out to be no HTTP.
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with client.raw(head + b"no length\r\n") as connection:
        head, body = connection.makefile("rb").read().split(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0]
        assert json.loads(body)["error"]["message"] == "the request is not HTTP/1.1"
    typed = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    chunks = b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10_001
    with client.raw(typed + chunks) as connection:
        head, body = connection.makefile("rb").read().split(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0]
        assert json.loads(body)["error"]["message"] == "the body has more than 10000 chunks"
    with client.raw(post_bytes({"max_tokens": 100_000, "stream": True})) as connection:
        assert b" 200 " in connection.recv(1000).splitlines()[0]
        connection.sendall(b"\0\r\n\r\n")
    client.wait_until_empty()
    assert caplog.text == ""
    assert client.text(prompt="a", max_tokens=2)


def test_keys(make_engine):
    with serving(make_engine(), LIMITS, keys=("first", "schlüssel")) as client:
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": "Bearer wrong"},
            {"authorization": "first"},
        ):
            assert client.error({}, 401, **headers)["code"] == "invalid_api_key"
            assert client.get("/v1/models", **headers).status == 401
        assert client.get("/health").status == client.get("/metrics").status == client.get("/").status == 200
        assert client.get("/v1/models", authorization="Bearer first").status == 200


def test_a_connection_serves_many(client):
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=PATIENCE)
    try:
        for body, status in (
            (b"{", 400),
            (b'{"max_tokens": 2}', 200),
            (b'{"stream": true}', 200),
            (b"{", 400),
        ):
            connection.request("POST", "/v1/completions", body, JSON)
            response = connection.getresponse()
            assert response.status == status
            response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_ends_its_side_is_answered(client, stream):
    body = {"prompt": "a", "max_tokens": 600, "temperature": 0, "stream": stream}
    expected = client.text(**body | {"stream": False})
    with client.raw(2 * post_bytes(body)) as connection:
        connection.shutdown(socket.SHUT_WR)
        for _ in range(2):
            response = http.client.HTTPResponse(connection)
            response.begin()
            text = response.read().decode()
            events = read_events(text) if stream else [json.loads(text)]
            assert "".join(chunk["choices"][0]["text"] for chunk in events) == expected
        assert connection.recv(1) == b""


def test_half_a_request_then_nothing(client):
    with client.raw(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n") as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(LIMITS.head_seconds - 1)  # sooner than a head that may still come
        connection.recv(1000)
