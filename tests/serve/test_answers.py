"""Pieces of answers: characters and stop texts that fall apart, log-probabilities of what is shown."""

import pytest

from based_jax.data.tokenizers import ByteTokenizer
from based_jax.generate.engine.request import Event, TokenLogprob
from based_jax.serve.answers import Answer, logprobs_object


def play(text: str, size: int, finish: str, stop: tuple[str, ...] = (), prompt: str = ""):
    """The pieces of an answer whose tokens come `size` at a time."""
    tokens = list(text.encode())
    answer = Answer(ByteTokenizer(), stop, prompt)
    pieces = []
    for begin in range(0, len(tokens), size):
        part = tuple(tokens[begin : begin + size])
        last = begin + size >= len(tokens)
        logprobs = tuple(TokenLogprob(token, -token / 100, ()) for token in part)
        pieces.append(answer.feed(Event(1, part, logprobs, finish if last else None)))
        if answer.finish:
            break
    return answer, pieces


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_characters_stay_whole(size):
    answer, pieces = play("né€ 🙂!", size, "length")
    assert "".join(piece.text for piece in pieces) == "né€ 🙂!"
    assert all("\ufffd" not in piece.text for piece in pieces)
    assert answer.tokens == 12
    assert answer.finish == pieces[-1].finish == "length"


def test_an_incomplete_character_shows_at_the_end():
    answer = Answer(ByteTokenizer(), ())
    assert answer.feed(Event(1, (0x61, 0xC3), (), None)).text == "a"
    assert answer.feed(Event(1, (), (), "stop")) == ("\ufffd", [], "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize("stop", ["three", "o three", "€ th", "\ufffd"])
def test_stop_texts(size, stop):
    text = "one two€ three"
    answer, pieces = play(text, size, "length", (stop, "never"))
    cut = text.find(stop) if stop in text else len(text)
    shown = "".join(piece.text for piece in pieces)
    assert shown == text[:cut]
    assert answer.finish == ("stop" if stop in text else "length")
    # The tokens that are reported are those of the text that is shown, whatever the pieces.
    reported = [item for piece in pieces for item in piece.logprobs]
    assert bytes(item.token for _, item in reported) == shown.encode()
    assert [shown[begin] for begin, _ in reported] == [
        character for character in shown for _ in character.encode()
    ]


def test_the_tokens_of_an_answer_do_not_depend_on_the_pieces():
    counts = {play("one two three", size, "length", ("two",))[0].tokens for size in (1, 2, 5, 50)}
    assert counts == {len("one two")}


def test_what_comes_behind_the_end_is_nothing():
    answer, _ = play("one two", 50, "length", ("e",))
    assert answer.feed(Event(1, (97,), (), "length")) == ("", [], "stop")
    assert answer.tokens == 3


def test_the_prompt_comes_first():
    _, pieces = play("b", 1, "stop", (), "a")
    assert [piece.text for piece in pieces] == ["ab"]


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
