"""Completions over HTTP: OpenAI's shapes, and the texts that the library itself makes."""

import json

import jax
import numpy as np
import pytest

from based_jax.data.tokenizers import ByteTokenizer
from based_jax.generate.text import TextStream

PROMPT = "def main():"


def library(model, prompt=PROMPT, count=40, **options) -> str:
    return "".join(TextStream(*model, ByteTokenizer(), prompt, max_new_tokens=count, **options))


def test_shape(client):
    answer = client.complete(prompt=PROMPT, max_tokens=5, model="tiny", user="somebody")
    (choice,) = answer.pop("choices")
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    assert answer == {"object": "text_completion", "model": "tiny", "usage": usage}
    assert choice.pop("text")
    assert choice == {"index": 0, "logprobs": None, "finish_reason": "length"}


@pytest.mark.parametrize("prompt", [PROMPT, "", "naïve €"])
def test_the_text_is_the_librarys(client, model, prompt):
    assert client.text(prompt=prompt, max_tokens=40) == library(model, prompt)


def test_a_stream_is_the_answer_in_chunks(client):
    asked = {"prompt": ["a", "b"], "n": 2, "max_tokens": 40, "logprobs": 0, "stop": "\x05"}
    whole = client.complete(**asked)
    events = client.stream(**asked, stream_options={"include_usage": True})
    *events, last = events
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in events)
    assert {event["object"] for event in events} == {"text_completion"}
    assert len({event["id"] for event in events}) == 1
    chunks = [event["choices"][0] for event in events]
    for choice in whole["choices"]:
        mine = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert len(mine) > 2
        assert "".join(chunk["text"] for chunk in mine) == choice["text"]
        *going_on, finish = [chunk["finish_reason"] for chunk in mine]
        assert set(going_on) == {None}
        assert finish == choice["finish_reason"]
        for name, values in choice["logprobs"].items():
            assert [value for chunk in mine for value in chunk["logprobs"][name]] == values


def test_stop_texts_and_echo(client, model):
    text = library(model)
    stop = text[11:14]
    answer = client.complete(prompt=PROMPT, max_tokens=40, stop=["never", stop], echo=True)
    assert answer["choices"][0]["text"] == PROMPT + text[: text.find(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 40


def test_every_form_of_prompt(client):
    text = client.text(prompt="ab", max_tokens=8)
    tokens = [256, *b"ab"]
    for prompt in ("ab", ["ab"], tokens, [tokens]):
        assert client.text(prompt=prompt, max_tokens=8) == text
    both = client.complete(prompt=[tokens, [256, 99]], max_tokens=8, echo=True)["choices"]
    assert [choice["index"] for choice in both] == [0, 1]
    assert both[0]["text"] == f"ab{text}"
    assert both[1]["text"].startswith("c")


def test_seeds(client):
    asked = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1.5}
    texts = [choice["text"] for choice in client.complete(**asked, n=3, seed=7)["choices"]]
    assert len(set(texts)) == 3
    assert [client.text(**asked, seed=seed) for seed in (7, 8, 9)] == texts
    assert client.text(**asked) != client.text(**asked)
    assert client.text(**asked, top_k=1) == client.text(prompt=PROMPT, max_tokens=20)


def logprobs_of(model, tokens: list[int]) -> np.ndarray:
    """Those of the model at every token, by one pass; (N, vocab)."""
    logits, _ = model[0].apply(model[1], np.array([tokens]))
    return np.asarray(jax.nn.log_softmax(logits[0, :, :257]))


@pytest.mark.release
@pytest.mark.parametrize("count", [0, 3])
def test_echo_with_logprobs(client, model, count):
    """What harnesses score texts by: the prompt's log-probabilities, then those of the answer."""
    tokens = [256, *PROMPT.encode()]
    whole = client.complete(prompt=tokens, max_tokens=count, echo=True, logprobs=2)
    (choice,) = whole["choices"]
    logprobs, text = choice["logprobs"], choice["text"]
    assert text.startswith(PROMPT)
    assert choice["finish_reason"] == "length"
    usage = {"prompt_tokens": 12, "completion_tokens": count, "total_tokens": 12 + count}
    assert whole["usage"] == usage
    assert set(map(len, logprobs.values())) == {12 + count}
    assert logprobs["tokens"][:12] == ["token_id:256", *PROMPT]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"][:12] == [0, *range(11)]
    expected = logprobs_of(model, tokens)[np.arange(11), tokens[1:]]
    np.testing.assert_allclose(logprobs["token_logprobs"][1:12], expected, rtol=1e-4, atol=1e-5)
    assert all(value <= max(top.values()) for value, top in zip(*shown(logprobs), strict=True))
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])
    events = client.stream(prompt=tokens, max_tokens=count, echo=True, logprobs=2)
    chunks = [event["choices"][0] for event in events]
    assert "".join(chunk["text"] for chunk in chunks) == text
    assert [value for chunk in chunks for value in chunk["logprobs"]["tokens"]] == logprobs["tokens"]


@pytest.mark.parametrize("prompt", ["", [97]])
def test_echo_of_one_token(client, prompt):
    asked = {"prompt": prompt, "echo": True, "logprobs": 1}
    for count in (0, 1):
        choice = client.complete(**asked, max_tokens=count)["choices"][0]
        logprobs = choice["logprobs"]
        assert logprobs["tokens"][0] == ("token_id:256" if prompt == "" else "a")
        assert set(map(len, logprobs.values())) == {1 + count}
        assert logprobs["token_logprobs"][0] is None
        events = [event["choices"][0] for event in client.stream(**asked, max_tokens=count)]
        assert [name for event in events for name in event["logprobs"]["tokens"]] == logprobs["tokens"]


def shown(logprobs):
    return logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]


def test_the_separator_is_reported_where_it_ends_an_answer(client):
    """So that what follows an echoed prompt is one token with max_tokens = 1, whatever it is."""
    for letter in "abcdefgh":  # one of which is unlikely before an answer whose separator is made likely
        prompt = [256, *letter.encode()]
        asked = {"prompt": prompt, "max_tokens": 1, "repetition_penalty": 1e-20, "echo": True, "logprobs": 1}
        choice = client.complete(**asked)["choices"][0]
        if choice["finish_reason"] == "stop":
            break
    assert (choice["text"], choice["finish_reason"]) == (letter, "stop")
    assert choice["logprobs"]["tokens"] == ["token_id:256", letter, "token_id:256"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]


def test_models(client):
    listed = json.loads(client.get("/v1/models").all)
    assert listed["object"] == "list"
    assert listed["data"] == [json.loads(client.get("/v1/models/tiny").all)]
    assert listed["data"][0]["id"] == "tiny"
    assert listed["data"][0]["object"] == "model"
    assert json.loads(client.get("/v1/models/other").all)["error"]["code"] == "model_not_found"
    assert client.error({"model": "other"}, 404)["code"] == "model_not_found"


def test_health_and_metrics(client):
    assert json.loads(client.get("/health").all) == {"status": "ok"}
    before = client.number("engine_made_tokens_total")
    client.complete(prompt="a", max_tokens=9)
    client.wait_until_empty()
    assert client.number("engine_made_tokens_total") == before + 9
    assert client.number("engine_free") == 2
    assert client.number("answer_seconds_count") >= 1
    assert client.number('http_responses_total{status="200"}') >= 1
