"""Continuing texts: lm-eval's settings, stop texts."""

import jax
import numpy as np
import pytest

from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer
from based_jax.evals.lm_eval import continuations
from based_jax.evals.lm_eval.continuations import Settings, continue_texts, keys_for
from based_jax.generate import Sampler, generate
from tests.data.libraries import llama
from tests.generate.tiny import make_bytes

BYTES = ByteTokenizer()
PROMPTS = [BYTES.encode(text) for text in ("What is", "a longer one")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Settings((), 256, Sampler(0.0))),
        ({"until": "\n", "max_gen_toks": "64"}, Settings(("\n",), 64, Sampler(0.0))),
        ({"until": ["a", ""], "max_gen_toks": 8}, Settings(("a",), 8, Sampler(0.0))),
        ({"do_sample": False, "temperature": 0.7}, Settings((), 256, Sampler(0.0))),
        ({"temperature": 0.7, "top_p": 0.9}, Settings((), 256, Sampler(0.7, None, 0.9))),
        ({"do_sample": True, "top_k": 5, "max_tokens": 3}, Settings((), 3, Sampler(1.0, 5))),
        ({"do_sample": True, "temperature": 0}, Settings((), 256, Sampler(0))),
        ({"repetition_penalty": 1.2}, Settings((), 256, Sampler(repetition_penalty=1.2))),
        ({"repetition_penalty": None, "min_p": 0.1}, Settings((), 256, Sampler(min_p=0.1))),
    ],
)
def test_settings(options, expected):
    assert Settings.read(options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 4}, r"generation_kwargs = \['num_beams'\]: expected only until, do_sample"),
        ({"max_gen_toks": 0}, "max_gen_toks = 0: expected an integer, at least 1"),
        ({"until": [3]}, "until = 3: expected texts"),
        ({"temperature": -1}, "temperature = -1: expected"),
        ({"temperature": 1, "top_p": 2}, "top_p = 2: expected"),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Settings.read(options)


def test_looking_for_stops_while_tokens_come(monkeypatch):
    """Nothing is made once every row has stopped; a row that ended is padded, and its padding is no text."""
    chunks = [[b"one. ", b"two E"], [b"more\n", b"ND..."], [b"never", b"seen "]]
    given = []

    def stream(model, params, prompts, *args, **options):
        for rows in chunks:
            given.append(rows)
            yield np.array([list(row) for row in rows])

    monkeypatch.setattr(continuations, "stream", stream)
    settings = Settings.read({"until": ["END", "\n"]})
    assert continue_texts(None, None, BYTES, PROMPTS, settings) == ["one. more", "two "]
    assert len(given) == 2
    chunks = [[[*b"one", 256], [*b"two."]], [[-1, -1], [*b".\n"]]]
    assert continue_texts(None, None, BYTES, PROMPTS, settings) == ["one", "two.."]


def test_the_prompt_is_the_context_and_stop_tokens_end(monkeypatch):
    tokenizer = FileTokenizer(llama().to_str())
    tokenizer.stop_tokens = (1, 2 + 0x0A)
    hello, asked = tokenizer.encode("hello"), {}

    def stream(*args, **options):
        asked.update(options)
        yield np.array([[*hello, 2 + 0xE2], [*hello, 2 + 0x0A]])
        yield np.array([[2 + 0x98, 2 + 0x83], [-1, -1]])

    monkeypatch.setattr(continuations, "stream", stream)
    made = continue_texts(None, None, tokenizer, [hello, hello], Settings.read({}))
    assert made == [" hello☃", " hello"]
    assert asked["stop_tokens"] == (1, 2 + 0x0A)


def test_the_models_own_tokens():
    model, params = make_bytes()

    def texts(prompts, numbers, **options):
        settings = Settings.read({"max_gen_toks": 12, **options})
        keys = None if settings.sampler.greedy else keys_for(3, numbers)
        return continue_texts(model, params, BYTES, prompts, settings, keys)

    tokens = generate(model, params, PROMPTS, 12, stop_tokens=(256,), pad_token=256)
    expected = [BYTES.decode(row) for row in np.asarray(tokens)]
    assert texts(PROMPTS, [0, 1]) == expected
    stop = expected[0][4]
    assert texts(PROMPTS, [0, 1], until=stop) == [text.split(stop)[0] for text in expected]
    sampled = texts(PROMPTS, [4, 7], do_sample=True)
    assert sampled != expected
    assert texts(PROMPTS[::-1], [7, 4], do_sample=True) == sampled[::-1]  # by number, not by row
    assert len(set(map(str, jax.random.key_data(keys_for(3, [4, 7]))))) == 2
