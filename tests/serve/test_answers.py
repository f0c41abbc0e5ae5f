"""Pieces of answers: characters and stop texts that fall apart, log-probabilities of what is shown."""

import pytest

from based_jax.data.tokenizers import ByteTokenizer
from based_jax.generate.engine.request import Event, TokenLogprob
from based_jax.serve.answers import Answer, Echo, chat_logprobs_object, logprobs_object


def play(text: str, size: int, finish: str, stop: tuple[str, ...] = (), prompt: str = ""):
    """The chunks of an answer whose tokens come `size` at a time."""
    tokens = list(text.encode())
    answer = Answer(ByteTokenizer(), stop, Echo(prompt, [256, *prompt.encode()]))
    chunks = []
    for begin in range(0, len(tokens), size):
        part = tuple(tokens[begin : begin + size])
        last = begin + size >= len(tokens)
        logprobs = tuple(TokenLogprob(token, -token / 100, ()) for token in part)
        chunks.append(answer.feed(Event(1, part, logprobs, finish if last else None)))
        if answer.finish:
            break
    return answer, chunks


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_characters_stay_whole(size):
    answer, chunks = play("né€ 🙂!", size, "length")
    assert "".join(chunk.text for chunk in chunks) == "né€ 🙂!"
    assert all("\ufffd" not in chunk.text for chunk in chunks)
    assert answer.tokens == 12
    assert answer.finish == chunks[-1].finish == "length"


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
    assert answer.finish == ("stop" if stop in text else "length")
    # The tokens that are reported are those of the text that is shown, whatever the chunks.
    reported = [item for chunk in chunks for item in chunk.logprobs]
    assert bytes(item.token for _, item in reported) == shown.encode()
    assert [shown[begin] for begin, _ in reported] == [
        character for character in shown for _ in character.encode()
    ]


def test_the_tokens_of_an_answer_do_not_depend_on_the_chunks():
    counts = {play("one two three", size, "length", ("two",))[0].tokens for size in (1, 2, 5, 50)}
    assert counts == {len("one two")}


def test_what_comes_after_the_end_is_nothing():
    answer, _ = play("one two", 50, "length", ("e",))
    assert answer.feed(Event(1, (97,), (), "length")) == ("", [], "stop")
    assert answer.tokens == 3


def test_the_prompt_comes_first():
    _, chunks = play("bc", 1, "stop", (), "é")
    assert [chunk.text for chunk in chunks] == ["éb", "c"]
    assert [begin for chunk in chunks for begin, _ in chunk.logprobs] == [1, 2]


def test_the_tokens_of_a_prompt_and_of_the_end_are_reported():
    answer = Answer(ByteTokenizer(), ("x",), Echo("é!", [256, *"é!".encode()]))
    prompt = [TokenLogprob(token, -1.0, ()) for token in "é!".encode()]
    made = TokenLogprob(98, -2.0, ()), TokenLogprob(256, -4.0, ())
    chunks = [
        answer.feed(Event(1, (), (), None, tuple(prompt))),
        answer.feed(Event(1, (98,), made[:1], "stop", end=made[1])),
    ]
    assert [chunk.text for chunk in chunks] == ["é!", "b"]
    assert answer.tokens == 1
    assert answer.mean_logprob == -3
    shown = [item for chunk in chunks for item in chunk.logprobs]
    assert logprobs_object(shown, ByteTokenizer()) == {
        "tokens": ["token_id:256", "token_id:195", "token_id:169", "!", "b", "token_id:256"],
        "token_logprobs": [None, -1, -1, -1, -2, -4],
        "top_logprobs": [
            None,
            {"token_id:195": -1},
            {"token_id:169": -1},
            {"!": -1},
            {"b": -2},
            {"token_id:256": -4},
        ],
        "text_offset": [0, 0, 0, 1, 2, 3],
    }


def test_the_end_is_not_reported_after_a_stop_text():
    answer = Answer(ByteTokenizer(), ("b",))
    made = TokenLogprob(98, -2.0, ()), TokenLogprob(256, -4.0, ())
    assert answer.feed(Event(1, (98,), made[:1], "stop", end=made[1])) == ("", [], "stop")
    assert answer.mean_logprob == -2


def test_logprobs_of_messages():
    shown = [(0, TokenLogprob(97, -0.5, ((97, -0.5), (0xC3, float("-inf")))))]
    a, part = {"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "token_id:195", "bytes": None}
    assert chat_logprobs_object(shown, ByteTokenizer()) == {
        "content": [{**a, "top_logprobs": [a, {**part, "logprob": -9999.0}]}],
        "refusal": None,
    }


def test_logprobs_in_openais_shape():
    shown = [
        (0, TokenLogprob(97, -0.5, ((97, -0.5), (98, float("-inf"))))),
        (1, TokenLogprob(0xC3, -1.5, ())),
    ]
    assert logprobs_object(shown, ByteTokenizer()) == {
        "tokens": ["a", "token_id:195"],
        "token_logprobs": [-0.5, -1.5],
        "top_logprobs": [{"a": -0.5, "b": -9999.0}, {"token_id:195": -1.5}],
        "text_offset": [0, 1],
    }
