"""Pieces of answers: characters and stop texts that fall apart, log-probabilities of what is shown."""

import json

import pytest
from tokenizers import AddedToken

from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer, complete_text
from based_jax.generate.engine.request import Event, TokenLogprob
from based_jax.serve.answering import _event
from based_jax.serve.answers import Answer, chat_logprobs_object, logprobs_object
from tests.data.libraries import llama


def play(text: str, size: int, finish: str, stop: tuple[str, ...] = (), prompt: str = ""):
    """The chunks of an answer whose tokens come `size` at a time."""
    tokens = list(text.encode())
    answer = Answer(ByteTokenizer(), stop, [256, *prompt.encode()], prompt)
    chunks = []
    for begin in range(0, len(tokens), size):
        part = tuple(tokens[begin : begin + size])
        last = begin + size >= len(tokens)
        logprobs = tuple(TokenLogprob(token, -token / 100, ()) for token in part)
        chunks.append(answer.feed(Event(1, part, logprobs, finish if last else None)))
        if answer.finish:
            break
    return answer, chunks


def test_an_incomplete_character_shows_at_the_end():
    answer = Answer(ByteTokenizer(), ())
    assert answer.feed(Event(1, (0x61, 0xC3), (), None)).text == "a"
    assert answer.feed(Event(1, (), (), "stop")) == ("\ufffd", [], "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize("stop", ["three", "o three", "€ th", "\ufffd"])
def test_stop_texts(size, stop):
    text = "one two€ three"
    answer, chunks = play(text, size, "length", (stop, "never"))
    cut = text.find(stop) if stop in text else len(text)
    shown = "".join(chunk.text for chunk in chunks)
    assert shown == text[:cut]
    assert answer.finish == chunks[-1].finish == ("stop" if stop in text else "length")
    assert answer.tokens == len((text[:cut] + stop if stop in text else text).encode())
    # The tokens that are reported are those of the text that is shown, whatever the chunks.
    reported = [item for chunk in chunks for item in chunk.logprobs]
    assert bytes(item.token for _, item in reported) == shown.encode()
    assert [shown[begin] for begin, _ in reported] == [
        character for character in shown for _ in character.encode()
    ]


def test_what_comes_after_the_end_is_nothing():
    answer, _ = play("one two", 50, "length", ("e",))
    assert answer.feed(Event(1, (97,), (), "length")) == ("", [], "stop")
    assert answer.tokens == 3


def test_the_tokens_of_a_prompt_and_of_the_end_are_reported():
    answer = Answer(ByteTokenizer(), ("x",), [256, *"é!".encode()], "é!", prompt_logprobs=True)
    prompt = [TokenLogprob(token, -1.0, ()) for token in "é!".encode()]
    made = TokenLogprob(98, -2.0, ()), TokenLogprob(256, -4.0, ())
    chunks = [
        answer.feed(Event(1, (), (), None, tuple(prompt))),
        answer.feed(Event(1, (98,), made[:1], "stop", end=made[1])),
    ]
    assert [chunk.text for chunk in chunks] == ["é!", "b"]
    assert answer.tokens == 1
    shown = [item for chunk in chunks for item in chunk.logprobs]
    assert logprobs_object(shown, ByteTokenizer()) == {
        "tokens": ["token_id:256", "bytes:\\xc3", "bytes:\\xa9", "!", "b", "token_id:256"],
        "token_logprobs": [None, -1, -1, -1, -2, -4],
        "top_logprobs": [
            *(None, {"bytes:\\xc3": -1}, {"bytes:\\xa9": -1}),
            *({"!": -1}, {"b": -2}, {"token_id:256": -4}),
        ],
        "text_offset": [0, 0, 0, 1, 2, 3],
    }


@pytest.mark.parametrize("echo", [True, False])
def test_the_prompt_is_the_context_of_an_answer(echo):
    """The first word keeps its space, and a character that the prompt begins is the answer's."""
    words = FileTokenizer(llama().to_str())
    hello = words.encode("hello").tolist()
    for tokenizer, prompt, ids, text in (
        (words, hello, [*hello, 2 + 0xE2, 2 + 0x98, 2 + 0x83], " hello☃"),
        (words, [*hello, 2 + 0xE2], [2 + 0x98, 2 + 0x83], "☃"),
        (ByteTokenizer(), b"a\xe2", b"\x98\x83", "☃"),
    ):
        shown = complete_text(tokenizer, [*prompt]) if echo else ""
        answer = Answer(tokenizer, (), [*prompt], shown)
        chunks = [answer.feed(Event(1, (token,), (), None)).text for token in ids]
        chunks.append(answer.feed(Event(1, (), (), "length")).text)
        assert "".join(chunks) == shown + text
        assert "\ufffd" not in "".join(chunks)


def test_tokens_of_one_text_keep_their_values():
    """Alone, both are decoded to "hello"."""
    library = llama()
    library.add_tokens([AddedToken("hello", normalized=False)])
    tokenizer = FileTokenizer(library.to_str())
    plain, word = library.token_to_id("hello"), library.token_to_id("\u2581hello")
    shown = [(0, TokenLogprob(plain, -3.0, ((word, -0.1), (2 + 0xE2, -2.0))))]
    assert logprobs_object(shown, tokenizer) == {
        "tokens": ["hello"],
        "token_logprobs": [-3.0],
        "top_logprobs": [{"hello": -3.0, " hello": -0.1, r"bytes:\xe2": -2.0}],
        "text_offset": [0],
    }
    (item,) = chat_logprobs_object(shown, tokenizer)["content"]
    assert [other["bytes"] for other in item["top_logprobs"]] == [list(b" hello"), [0xE2]]


def test_events_are_one_line_for_every_client():
    """Some end lines at each of these, as `str.splitlines` does."""
    text = "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\nb"
    event = _event({"text": text}).decode()
    assert len(event.splitlines()) == 2
    assert json.loads(event.removeprefix("data: "))["text"] == text


def test_the_end_is_not_reported_after_a_stop_text():
    answer = Answer(ByteTokenizer(), ("b",))
    made = TokenLogprob(98, -2.0, ()), TokenLogprob(256, -4.0, ())
    assert answer.feed(Event(1, (98,), made[:1], "stop", end=made[1])) == ("", [], "stop")


def test_logprobs_of_messages():
    shown = [(0, TokenLogprob(97, -0.5, ((97, -0.5), (0xC3, float("-inf")))))]
    a, part = {"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "bytes:\\xc3", "bytes": [0xC3]}
    assert chat_logprobs_object(shown, ByteTokenizer()) == {
        "content": [{**a, "top_logprobs": [a, {**part, "logprob": -9999.0}]}],
        "refusal": None,
    }
