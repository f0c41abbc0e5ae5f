"""Whatever is wrong with a request is said, in OpenAI's shape, and costs the server nothing."""

import http.client
import json
import socket
import time

import pytest

from based_jax.serve.asked import Asked
from based_jax.serve.errors import Refusal
from based_jax.serve.limits import Limits
from tests.patience import PATIENCE
from tests.serve.client import JSON, post_bytes, serving
from tests.serve.conftest import LIMITS


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"max_token": 3}, "max_token", "unknown field 'max_token'"),
        ({"best_of": 2}, "best_of", "best_of is not supported"),
        ({"suffix": "a"}, "suffix", "suffix is not supported"),
        ({"logit_bias": {}}, "logit_bias", "logit_bias is not supported"),
        ({"prompt": 3}, "prompt", "prompt: expected a text"),
        ({"prompt": []}, "prompt", "prompt: expected a text"),
        ({"prompt": ["a", 1]}, "prompt", "prompt: expected a text"),
        ({"prompt": [[1], []]}, "prompt", "prompt: expected a text"),
        ({"prompt": [True]}, "prompt", "prompt: expected a text"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens = 0: expected an integer, at least 1"),
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
        ({"logprobs": 1, "echo": True}, "echo", "echo cannot be combined with logprobs"),
        ({"stop": ""}, "stop", "stop: expected"),
        ({"stop": ["a"] * 17}, "stop", "stop: expected"),
        ({"stop": [1]}, "stop", "stop: expected"),
        ({"stream": "yes"}, "stream", 'stream = "yes": expected true or false'),
        ({"stream_options": {"include_usage": True}}, "stream_options", "expected only with stream"),
        ({"stream": True, "stream_options": {"a": 1}}, "stream_options", "include_usage alone"),
        ({"model": 1}, "model", "model = 1: expected a text"),
        ([], None, "not a JSON object"),
    ],
    ids=str,
)
def test_bodies(body, param, message):
    with pytest.raises(Refusal) as raised:
        Asked.read(json.dumps(body).encode())
    assert raised.value.status == 400
    assert raised.value.param == param
    assert message in str(raised.value)


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": NaN}', b"\xff", b"[" * 100_000, b"1" * 5000])
def test_bodies_that_are_no_json(body):
    with pytest.raises(Refusal, match=r"not JSON|too deeply"):
        Asked.read(body)


def test_null_is_the_default():
    asked = Asked.read(b'{"max_tokens": null, "best_of": null, "top_k": -1, "min_p": 0, "seed": -1}')
    assert asked.max_tokens == 16
    assert asked.sampler.temperature == 1
    assert asked.sampler.top_k is asked.sampler.min_p is None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": [257]}, "prompt", "prompt: expected tokens in [0, 257)"),
        ({"prompt": [-1]}, "prompt", "prompt: expected tokens in [0, 257)"),
        ({"prompt": "\ud800"}, "prompt", "prompt: 'utf-8' codec"),
        ({"n": 17}, "n", "at most 16 answers"),
        ({"prompt": ["a"] * 6, "n": 3}, "n", "at most 16 answers"),
        ({"max_tokens": 10**6}, "max_tokens", "expected at most 200000"),
        ({"prompt": "a", "max_tokens": 200_000, "n": 17}, "n", "at most 16"),
    ],
    ids=str,
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
        ("GET", "/v1/completions", {}, 405),
        ("POST", "/v1/chat/completions", {}, 404),
        ("POST", "/v1/completions", {"content_type": "text/plain"}, 415),
        ("POST", "/v1/completions", {"content_type": "application/json; charset=utf-8"}, 400),
    ],
)
def test_paths_and_types(client, method, path, headers, status):
    response = client.send(method, path, b"", **headers)
    assert response.status == status
    assert set(json.loads(response.all)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/chat/completions", "no chat format, so send the conversation as the text of `prompt`"),
        ("/v1/responses", "no chat format"),
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
    assert message.endswith("; POST /v1/completions continues a text, GET /v1/models names the model")


def test_other_models(client):
    assert client.error({"model": "other"}, 404)["code"] == "model_not_found"


def test_large_bodies(client):
    body = {"prompt": "a" * 30_000}
    assert client.error(body, 413)["message"] == "the body is larger than 20000 bytes"
    with client.raw(post_bytes(body)[:-1]) as connection:  # nor is it waited for
        assert b" 408 " in connection.recv(1000).splitlines()[0]
    endless = post_bytes({}).replace(b"content-length: 2", b"content-length: 9999999") + b" " * 400_000
    with client.raw(endless) as connection:
        assert b" 413 " in connection.recv(1000).splitlines()[0]


def test_slow_bodies(client):
    with client.raw(post_bytes({"prompt": "abc"})[:-5]) as connection:
        begin = time.monotonic()
        for _ in range(3):
            time.sleep(0.1)
            connection.sendall(b" ")
        answer = b""
        while b'"error"' not in answer:  # head and body may come one after the other
            piece = connection.recv(1000)
            assert piece, answer
            answer += piece
        assert b" 408 " in answer.splitlines()[0]
        assert time.monotonic() - begin < Limits.body_seconds


def test_requests_that_are_no_http(client):
    with client.raw(b"\x16\x03\x01 hello\r\n\r\n") as connection:
        assert b" 400 " in connection.recv(1000).splitlines()[0]
    with client.raw(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 3000) as connection:
        assert b" 400 " in connection.recv(1000).splitlines()[0]
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


def test_half_a_request_then_nothing(client):
    with client.raw(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n") as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(LIMITS.head_seconds - 1)  # sooner than a head that may still come
        connection.recv(1000)
