"""Whatever is wrong with a request is reported in OpenAI's format, and costs the server nothing."""

import json
from typing import Any

import pytest

from based_jax.data.tokenizers import ByteTokenizer
from based_jax.serve.app import KnownHosts
from based_jax.serve.fields import Refusal
from based_jax.serve.requests import CompletionRequest
from tests.serve.client import post_bytes, serving
from tests.serve.conftest import LIMITS

HUGE = 10**400


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"max_token": 3}, "max_token", 'unknown field "max_token": expected one of model, n, stop'),
        ({"best_of": 2}, "best_of", "best_of is not supported: take the best of n answers"),
        ({"suffix": "a"}, "suffix", "suffix is not supported: the model has not learned to fill in"),
        ({"prompt": 3}, "prompt", "prompt = 3: expected `str | array`"),
        ({"prompt": [[1], []]}, "prompt", "of length >= 1 - at `$.prompt[1]`"),
        ({"prompt": [257]}, "prompt", "prompt = 257: expected tokens in [0, 257)"),
        ({"prompt": [[HUGE]]}, "prompt", "000...: expected tokens in [0, 257)"),
        ({"prompt": [3, -1, 4]}, "prompt", "prompt = [3, -1, 4]: expected `int` >= 0"),
        ({"prompt": "a" * 641}, "prompt", "a prompt of 641 characters: expected at most 640"),
        ({"prompt": [1] * 21}, "prompt", "a prompt of 21 tokens: expected at most 20"),
        ({"prompt": "abcd"}, "prompt", "5 tokens and max_tokens = 16: expected at most 20 together"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens = -1: expected `int` >= 0"),
        ({"max_tokens": HUGE}, "max_tokens", "000...: expected at most 18"),
        ({"max_tokens": [[[[1]]]]}, "max_tokens", "max_tokens = [[[[1]]]]: expected `int`"),
        ({"n": 0}, "n", "n = 0: expected `int` >= 1"),
        ({"prompt": ["a"] * 2, "n": 3}, "n", "2 prompts times n = 3: at most 4 answers"),
        ({"temperature": -1}, "temperature", "temperature = -1.0: expected a finite number"),
        ({"temperature": "warm"}, "temperature", 'temperature = "warm": expected `float`, got `str`'),
        ({"temperature": HUGE}, "temperature", f"temperature = 1{'0' * 59}...: number out of range"),
        ({"repetition_penalty": 1e-308}, "repetition_penalty", "= 1e-308: expected a number from 1e-20"),
        ({"top_p": 0}, "top_p", "top_p = 0.0: expected"),
        ({"top_k": HUGE}, "top_k", "000...: expected `int` <= 2147483647"),
        ({"seed": 2**63}, "seed", "seed = 9223372036854775808: expected `int` <= 9223372036854775807"),
        ({"logprobs": 6}, "logprobs", "logprobs = 6: expected `int` <= 5"),
        ({"stop": ""}, "stop", 'stop = "": expected `str` of length >= 1'),
        ({"stop": [1]}, "stop", "stop = [1]: expected `str`, got `int` - at `$.stop[0]`"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "expected only with stream"),
        ({"stream": True, "stream_options": {"a\n" * 999: 1}}, "stream_options", "unknown field `a\\na"),
        ({"model": ["é" * 100]}, "model", 'model = ["\\u00e9\\u00e9'),
        ({"a" * 100: 1}, None, f'unknown field "{"a" * 59}...: expected one of model'),
        ({"stream": True, "stream_options": {"` - at `$.x`": 1}}, "stream_options", "unknown field"),
        ({"stop": "\ud800"}, None, "the body is not a JSON object"),
        ([], None, "the body is not a JSON object: Expected `object`, got `array`"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies(body, param, message):
    limits = LIMITS.__class__(length=20, max_tokens=18, choices=4)
    with pytest.raises(Refusal) as raised:
        CompletionRequest.read(json.dumps(body).encode()).requests(ByteTokenizer(), 257, limits)
    assert raised.value.status == 400
    assert raised.value.param == param
    assert message in str(raised.value)
    assert len(str(raised.value)) < 400
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b'{"a": NaN}', b"\xff", b'{"\xff": 1}', b'{"prompt": "\xff"}', b"[" * 900),
        *("{}".encode("utf-16"), b'{"max_tokens": ' + b"1" * 5000 + b"}", b'{"prompt": ' + b"[" * 100_000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bodies_that_are_no_json(body):
    with pytest.raises(Refusal):
        CompletionRequest.read(body)


def test_null_and_ignored_fields_are_defaults():
    body = b'{"max_tokens": null, "best_of": null, "top_k": -1, "min_p": 0, "user": {"a": 1}, "suffix": "",'
    body += b' "stream": true, "stream_options": {"include_usage": null}}'
    asked = CompletionRequest.read(body)
    assert not asked.include_usage
    sampler = asked.sampler()
    assert (asked.max_tokens, asked.n, sampler.temperature) == (16, 1, 1)
    assert sampler.top_k is sampler.min_p is None


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "message"),
    [
        ("GET", "/nowhere", {}, 404, "GET /nowhere: Not Found"),
        ("POST", "/v1/completions/", {}, 404, "Not Found: not served; POST /v1/completions continues a text"),
        ("GET", "/v1/models/" + "a" * 100, {}, 404, 'model = "aaa'),
        ("GET", "/%0d%0aa", {}, 404, "GET /%0d%0aa: "),
        ("X" * 1000, "/" + "a" * 1000, {}, 404, "Not Found"),
        ("GET", "/v1/completions", {}, 405, "Method Not Allowed"),
        ("POST", "/v1/completions", {"content_type": "text/plain"}, 415, 'content-type = "text/plain"'),
        ("POST", "/v1/completions", {"content_type": "application/json; charset=utf-8"}, 400, "not a JSON"),
    ],
)
def test_paths_and_types(client, method, path, headers, status, message):
    response = client.send(method, path, b"", **headers)
    assert response.status == status
    error = json.loads(response.all)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert message in error["message"]
    assert len(error["message"]) < 300
    assert error["message"].isprintable()


@pytest.mark.parametrize(
    ("known", "hosts"),
    [
        (True, "localhost LocalHost.:80 a.localhost:8000 192.0.2.1:1 [::1]:8000 proxy.example:443 a.b.lan:1"),
        (False, "a.proxy.example lan alan localhost.attacker.example notlocalhost 127.0.0.1.example:80 [ "),
    ],
)
def test_names_of_the_server(known, hosts):
    app: Any = None
    names = KnownHosts(app, ["Proxy.example", "*.lan"])
    assert [host for host in hosts.split(" ") if names.knows(host) != known] == []
    assert KnownHosts(app, ["*"]).knows("anything")


def test_a_foreign_name_is_refused_everywhere(client):
    for path in ("/health", "/metrics", "/v1/models", "/nowhere"):
        response = client.get(path, host="attacker.example")
        assert response.status == 421
        assert b'host = \\"attacker.example\\": expected localhost, an IP address' in response.all


def test_large_bodies(client):
    assert client.error({"prompt": "a" * 300_000}, 413)["message"] == "the body is larger than 20000 bytes"
    chunked = post_bytes({}).partition(b"content-length")[0] + b"transfer-encoding: chunked\r\n\r\n"
    with client.raw(chunked + b"5000\r\n" + b" " * 0x5000 + b"\r\n0\r\n\r\n") as connection:
        assert b" 413 " in connection.recv(1000).splitlines()[0]


def test_a_body_of_many_values_costs_little():
    """The largest body that is decoded wholly has a million tokens; one of a wrong type ends at once."""
    with pytest.raises(Refusal, match="got `array`"):
        CompletionRequest.read(b'{"prompt": [' + b"[[]]," * 500_000 + b"0]}")


def test_keys(make_engine):
    with serving(make_engine(), LIMITS, keys=("first", "schlüssel")) as client:
        for key in (None, "Bearer", "Bearer wrong", "first"):
            headers = {} if key is None else {"authorization": key}
            assert client.error({}, 401, **headers)["code"] == "invalid_api_key"
            assert client.get("/v1/models", **headers).status == 401
        assert client.get("/health").status == client.get("/metrics").status == 200
        for key in ("first", "schlüssel".encode().decode("latin-1")):  # sent as UTF-8, as by curl
            assert client.get("/v1/models", authorization=f"Bearer {key}").status == 200
