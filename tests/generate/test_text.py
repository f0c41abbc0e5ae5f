"""Text in chunks: stop texts, separators, characters of several bytes."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer
from based_jax.generate import generate, text
from based_jax.generate.text import StopTexts, TextStream
from tests.data.libraries import llama


class Vocabulary(ByteTokenizer):
    """The first 49 bytes and a separator: fits the tiny models."""

    vocab_size = 50
    eot = 49

    def encode(self, text):
        return super().encode(text) % 49

    def decode(self, ids):
        return super().decode([token for token in np.asarray(ids).tolist() if token != self.eot])


@given(
    text_=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
@settings(max_examples=300)
def test_stop_texts_do_not_depend_on_the_chunks(text_, stops, cuts):
    edges = sorted({0, len(text_), *(cut for cut in cuts if cut < len(text_))})
    cut = StopTexts(stops)
    found = "".join(cut.feed(text_[a:b]) for a, b in pairwise(edges)) + cut.flush()
    assert text_.startswith(found)
    assert cut.found == any(stop in text_ for stop in stops)
    assert not any(stop in found for stop in stops)
    ends = [(text_.find(stop) + len(stop), text_.find(stop)) for stop in stops if stop in text_]
    assert found == text_[: min(ends)[1] if ends else None]  # before the stop text that ends first


def test_one_stop_text():
    assert StopTexts("END").feed("NEVER END") == "NEVER "


def test_empty_stop_text_is_an_error():
    with pytest.raises(ValueError, match=r"^stop = '': expected"):
        StopTexts(["a", ""])


@pytest.mark.parametrize("stop", [(), "used"])
def test_text_is_the_decoded_tokens(tiny, stop):
    case, vocabulary = tiny("C"), Vocabulary()
    options = {"max_new_tokens": 30, "temperature": 1.5, "rng": jax.random.key(4)}
    prompt = [vocabulary.eot, *vocabulary.encode("hello").tolist()]
    tokens = generate(case.model, case.params, [prompt], stop_tokens=(vocabulary.eot,), **options)[0].tolist()
    tokens = tokens[: tokens.index(49)] if 49 in tokens else tokens
    expected = vocabulary.decode(tokens)
    if stop:
        stop = (expected[7:9],)
        expected = expected[: expected.find(stop[0])]
    chunks = TextStream(case.model, case.params, vocabulary, "hello", stop=stop, **options)
    shown = list(chunks)
    assert "".join(shown) == expected
    assert all(shown)
    assert 0 < chunks.tokens <= 30


@pytest.fixture
def said(tiny, monkeypatch):
    """The chunks of a `TextStream` whose model makes given tokens, and what it asked for."""

    def call(tokenizer, prompt, tokens, **options):
        asked = {}

        def script(model, params, prompt, **options):
            asked.update(options, prompt=prompt.tolist())
            return iter(np.array([[token]], np.int32) for token in tokens)

        monkeypatch.setattr(text, "stream", script)
        monkeypatch.setattr(tokenizer, "vocab_size", 50)
        case = tiny("C")
        chunks = TextStream(case.model, case.params, tokenizer, prompt, **options)
        return list(chunks), chunks.tokens, asked

    return call


def test_separator_ends_and_characters_stay_whole(said):
    tokens = [*"né€".encode(), 256]
    asked = {"prompt": [[256, 97, 98]], "stop_tokens": (256,), "max_new_tokens": 9}
    assert said(ByteTokenizer(), "ab", tokens, max_new_tokens=9) == (["n", "é", "€"], len(tokens), asked)


def test_words_keep_their_spaces_and_stop_tokens_end(said):
    tokenizer = FileTokenizer(llama().to_str())
    tokenizer.stop_tokens = (1, 7)
    tokens = [*tokenizer.encode("hello").tolist(), 2 + 0xE2, 2 + 0x98, 2 + 0x83, 7]
    for prompt, expected in (("hello", " hello☃"), ("", "hello☃")):
        chunks, _, asked = said(tokenizer, prompt, tokens)
        assert "".join(chunks) == expected
        assert asked["stop_tokens"] == (1, 7)


def test_tokenizer_must_fit(tiny):
    case = tiny("C")
    with pytest.raises(ValueError, match=r"^tokenizer.vocab_size = 257: expected at most 50"):
        TextStream(case.model, case.params, ByteTokenizer(), "a")
