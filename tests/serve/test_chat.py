"""Chat completions over HTTP: OpenAI's shapes around the completion of the prompt that a template makes."""

import json

import pytest

from based_jax.data.chat.template import Chat, ChatTemplate
from based_jax.data.tokenizers import ByteTokenizer
from based_jax.serve.__main__ import find_chat
from based_jax.serve.app import NO_CHAT
from based_jax.serve.fields import Refusal
from based_jax.serve.requests import ChatRequest
from tests.serve.client import Client, read_events, serving
from tests.serve.conftest import LIMITS

pytest.importorskip("jinja2", reason="needs jinja2: pip install 'based-jax[chat]'")

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ m.role }}{{ ' ' + m.name if m.name }}: {{ m.content }}\n{% endfor %}"
    "{% if messages | length > 9 %}{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}assistant:"
)
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "name": "Ann"}]
PROMPT = "system: Be brief.\nuser Ann: Hi\nassistant:"


@pytest.fixture(scope="module")
def chat():
    made = Chat(ChatTemplate(TEMPLATE, {}), ByteTokenizer())
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(make_engine, chat) -> Client:
    with serving(make_engine(), LIMITS.__class__(length=300, max_tokens=50, choices=8), chat=chat) as client:
        yield client


def test_a_message_is_the_completion_of_the_rendered_prompt(client):
    answer = client.chat(messages=TALK, max_tokens=20, model="tiny")
    (choice,) = answer.pop("choices")
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    count = 1 + len(PROMPT)
    usage = {"prompt_tokens": count, "completion_tokens": 20, "total_tokens": count + 20}
    assert answer == {"object": "chat.completion", "model": "tiny", "usage": usage}
    message = {"role": "assistant", "content": client.text(prompt=PROMPT, max_tokens=20), "refusal": None}
    assert choice == {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    again = client.chat(messages=[{"role": "system", "content": parts}, TALK[1]], max_completion_tokens=20)
    assert again["choices"] == [choice]


@pytest.mark.slow
def test_settings_and_ends_are_those_of_completions(client):
    settings = {"temperature": 1.1, "seed": 4, "n": 2, "frequency_penalty": 0.5}
    made = client.chat(messages=TALK, max_tokens=12, **settings)["choices"]
    expected = client.complete(prompt=PROMPT, max_tokens=12, **settings)["choices"]
    assert [c["message"]["content"] for c in made] == [c["text"] for c in expected]
    assert [c["index"] for c in made] == [0, 1]
    stop = expected[0]["text"][3:5]
    stopped = client.chat(messages=TALK, max_tokens=12, stop=stop, **settings)["choices"][0]
    assert stopped["message"]["content"] == expected[0]["text"].partition(stop)[0]
    assert stopped["finish_reason"] == "stop"
    assert client.chat(messages=TALK)["usage"]["completion_tokens"] <= 50


@pytest.mark.release
def test_a_stream_is_the_message_in_deltas(client):
    asked = {"messages": TALK, "n": 2, "max_tokens": 20, "temperature": 0}
    asked |= {"logprobs": True, "top_logprobs": 2}
    whole = client.chat(**asked)
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    response = client.send("POST", "/v1/chat/completions", asked)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, last = read_events(response.all.decode())
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    for choice in whole["choices"]:
        first, *middle, end = [
            event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]
        ]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert (end["delta"], end["finish_reason"]) == ({}, "length")
        assert {chunk["finish_reason"] for chunk in (first, *middle)} == {None}
        assert all(set(chunk["delta"]) == {"content"} for chunk in middle)
        assert "".join(chunk["delta"]["content"] for chunk in middle) == choice["message"]["content"]
        shown = [item for chunk in middle for item in chunk["logprobs"]["content"]]
        assert shown == choice["logprobs"]["content"]
        assert len(shown) == 20
        assert all(len(item["top_logprobs"]) == 2 for item in shown)
        assert all(item["logprob"] == item["top_logprobs"][0]["logprob"] for item in shown)


def error(client, status=400, **body):
    return client.error(body, status, "/v1/chat/completions")


@pytest.mark.release
def test_conversations_that_the_template_refuses(client):
    found = error(client, messages=[{"role": "robot", "content": ""}])
    assert found["param"] == "messages"
    assert found["message"] == "messages: the chat template failed (TemplateError: no robots)"
    assert "was ended: expected one that needs" in error(client, messages=TALK * 5)["message"]
    assert client.chat(messages=TALK, max_tokens=2)["choices"]


def test_conversations_that_are_too_long(client):
    long = [{"role": "user", "content": "a" * 300}]
    assert error(client, messages=long)["code"] == "context_length_exceeded"
    assert error(client, messages=long[:1] * 9)["code"] == "context_length_exceeded"
    huge = [{"role": "user", "content": "a" * 9601}]
    assert "messages of 9605 characters" in error(client, messages=huge)["message"]
    assert error(client, messages=TALK, max_tokens=51)["param"] == "max_tokens"
    assert error(client, messages=TALK, n=9)["param"] == "n"
    assert error(client, 404, messages=TALK, model="other")["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, None, "missing required field `messages`"),
        ({"messages": []}, "messages", "messages = []: expected `array` of length >= 1"),
        ({"messages": ["a"]}, "messages", "expected `object`, got `str` - at `$.messages[0]`"),
        ({"messages": [{"role": "user"}]}, "messages", "missing required field `content`"),
        ({"messages": [{"role": 1, "content": "a"}]}, "messages", "at `$.messages[0].role`"),
        ({"messages": [{"role": "a", "content": "", "tool_calls": [{}]}]}, "messages", "of length <= 0"),
        ({"messages": [{"role": "a", "content": [{"type": "image_url"}]}]}, "messages", "'image_url'"),
        ({"messages": TALK, "tools": [{}]}, "tools", "tools is not supported: the server runs no tools"),
        ({"messages": TALK, "response_format": {}}, "response_format", "answers are texts"),
        ({"messages": TALK, "chat_template": "a"}, "chat_template", "the template is the model's own"),
        ({"messages": TALK, "prompt": "a"}, "prompt", 'unknown field "prompt"'),
        ({"messages": TALK, "logprobs": 2}, "logprobs", "logprobs = 2: expected `bool`"),
        ({"messages": TALK, "top_logprobs": 2}, "top_logprobs", "expected only with logprobs = true"),
        ({"messages": TALK, "logprobs": True, "top_logprobs": 6}, "top_logprobs", "expected `int` <= 5"),
        ({"messages": TALK, "max_tokens": 0}, "max_tokens", "expected `int` >= 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies(body, param, message):
    with pytest.raises(Refusal) as raised:
        ChatRequest.read(json.dumps(body).encode())
    assert raised.value.status == 400
    assert raised.value.param == param
    assert message in str(raised.value)


def test_fields_that_ask_for_nothing():
    neutral = {"tools": [], "functions": [], "tool_choice": "none", "function_call": "none", "store": False}
    neutral |= {"response_format": {"type": "text"}, "modalities": ["text"], "metadata": {}}
    plain = {"messages": TALK, "seed": 1}
    asked = ChatRequest.read(json.dumps(plain | neutral, indent=1).encode())
    assert asked == ChatRequest.read(json.dumps(plain).encode())


def test_an_answer_can_be_sent_back():
    """Clients send null, or an empty list, for all that an answer's message does not have."""
    empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "name"))
    for lacks in (empty, {"annotations": [], "tool_calls": []}):
        asked = ChatRequest.read(json.dumps({"messages": [{**TALK[0], **lacks}]}).encode())
        assert [message.texts() for message in asked.messages] == TALK[:1]


def test_a_model_without_a_template_says_what_is_missing(server):
    found = error(server, messages=TALK)
    assert found["code"] == "no_chat_template"
    assert "chat_template in tokenizer_config.json, or the file chat_template.jinja" in found["message"]
    server.wait_until_empty()


@pytest.mark.release
def test_how_the_command_finds_the_template(tmp_path, caplog):
    assert find_chat(tmp_path, ByteTokenizer()) == NO_CHAT
    (tmp_path / "chat_template.jinja").write_text("{{ messages")
    found = find_chat(tmp_path, ByteTokenizer())
    assert found.startswith(
        "this server has no chat completions: the chat template failed (TemplateSyntaxError"
    )
    assert found in caplog.text
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    chat = find_chat(tmp_path, ByteTokenizer())
    assert isinstance(chat, Chat)
    assert chat.text(TALK) == "Be brief."
    chat.close()
