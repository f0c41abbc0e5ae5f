"""Names of single tokens: as in OpenAI's completions, and no two alike."""

import pytest

from based_jax.data import ByteTokenizer, FileTokenizer, NucleotideTokenizer
from based_jax.data.tokenizers import token_bytes
from based_jax.serve.answers import token_name, token_names
from tests.data.libraries import byte_level, llama, unigram, words


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(),
        NucleotideTokenizer(),
        *(
            FileTokenizer(made.to_str())
            for made in (byte_level(), llama(), unigram(byte_fallback=True), words())
        ),
    ],
    ids=["byte", "dna", "byte level", "llama", "unigram", "words"],
)
def test_names_differ(tokenizer):
    found = token_names(tokenizer, range(tokenizer.vocab_size))
    assert len({*found.values()}) == tokenizer.vocab_size
    unnamed = [token for token, name in found.items() if name.startswith("token_id:")]
    assert unnamed == ([] if isinstance(tokenizer, FileTokenizer) else [tokenizer.eot])


def test_a_space_is_part_of_a_name():
    tokenizer = FileTokenizer(llama().to_str())
    word, letter, newline = (
        tokenizer._tokenizer.token_to_id(name) for name in ("\u2581hello", "a", "<0x0A>")
    )
    assert [token_name(tokenizer, token) for token in (word, letter, newline)] == [" hello", "a", "\n"]
    assert token_name(tokenizer, 2 + ord("a")) == "bytes:a", "the letter has a token of its own"
    assert token_name(tokenizer, 1) == "</s>"
    assert token_bytes(tokenizer, word) == b" hello"
    assert token_bytes(tokenizer, 2 + 0xE2) == b"\xe2"
    assert token_bytes(tokenizer, 1) == token_bytes(tokenizer, 10**6) == b""


def test_bytes_that_are_no_character():
    library = byte_level()
    library.add_tokens(["\u00e9\u2603"])  # letters outside of the alphabet: its own text
    tokenizer = FileTokenizer(library.to_str())
    ids = tokenizer.encode("a\\\u2603")
    assert b"".join(token_bytes(tokenizer, token) for token in ids) == "a\\\u2603".encode()
    assert [token_name(tokenizer, token) for token in ids] == [
        "a",
        "\\",
        r"bytes:\xe2",
        r"bytes:\x98",
        r"bytes:\x83",
    ]
    assert token_bytes(tokenizer, 257) == "\u00e9\u2603".encode()


def test_a_later_token_of_the_same_name_is_numbered():
    class Twins(ByteTokenizer):
        def token_bytes(self, token):
            return b"a"

    assert token_names(Twins(), [5, 3, 5]) == {5: "a", 3: "token_id:3"}
