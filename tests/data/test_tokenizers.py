"""Tokenizers: exact round trips, separators that text cannot forge, and streaming that equals decoding."""

import threading

import huggingface_hub
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import (
    ByteTokenizer,
    FileTokenizer,
    NucleotideTokenizer,
    StreamDecoder,
    Tokenizer,
    find_vocab_size,
    load_tokenizer,
)
from based_jax.data.file_tokenizer import train_byte_level_bpe
from based_jax.models import presets
from tests.data.libraries import byte_level

SAMPLE = ["hello world, hello there", "héllo wörld €€ 你好 🙂🙂", "the end of the text"] * 3


def test_a_long_text_does_not_stop_other_threads():
    """As those of a server, whose answers go on meanwhile."""
    tokenizer = FileTokenizer(_library_tokenizer().to_str())
    ticks, ended = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not ended.wait(0.001):
            ticks += 1

    other = threading.Thread(target=tick)
    other.start()
    tokenizer.encode("hello " * 200_000)
    ended.set()
    other.join()
    assert ticks > 5


def _library_tokenizer() -> tokenizers.Tokenizer:
    """A small byte-level tokenizer, with merges inside and across characters."""
    library = train_byte_level_bpe(iter(SAMPLE), 320)
    library.add_special_tokens(["<pad>"])
    return library


FILE_TOKENIZER = FileTokenizer(_library_tokenizer().to_str(), "small")
DNA = NucleotideTokenizer()
BOTH = pytest.mark.parametrize("tokenizer", [ByteTokenizer(), FILE_TOKENIZER], ids=["byte", "file"])


@BOTH
@given(text=st.text())
def test_text_survives_the_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert isinstance(tokenizer, Tokenizer)
    assert (ids.dtype, ids.ndim) == (np.int32, 1)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text
    assert np.all((ids >= 0) & (ids < tokenizer.vocab_size))
    assert tokenizer.eot not in ids


def test_byte_tokens_are_the_bytes():
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 257
    assert tokenizer.eot == 256
    np.testing.assert_array_equal(tokenizer.encode("aé"), [97, 0xC3, 0xA9])
    assert tokenizer.decode([256, 97, 256, 300, 98]) == "ab"
    assert tokenizer.decode([0xC3, 97]) == "\ufffda"


@pytest.mark.parametrize("bad", [[-1], [[1, 2]], [0.5], ["a"]])
@BOTH
def test_decode_rejects_what_is_not_ids(tokenizer, bad):
    with pytest.raises(ValueError, match=r"ids = .*expected one dimension of integers"):
        tokenizer.decode(bad)


@BOTH
def test_lone_surrogates_are_not_text(tokenizer):
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize("eot", ["<|endoftext|>", "</s>", "<eos>", "[SEP]"])
def test_known_separators_are_found(eot):
    library = byte_level([eot])
    assert FileTokenizer(library.to_str()).eot == library.token_to_id(eot)


def test_a_file_without_a_separator_is_an_error_that_lists_what_was_looked_for():
    with pytest.raises(ValueError, match=r"tokenizer = 'odd'.*<\|endoftext\|>.*</s>.*<eos>.*\[SEP\]"):
        FileTokenizer(byte_level(["<stop>"]).to_str(), "odd")


def test_truncation_and_padding_of_the_file_do_not_apply():
    library = _library_tokenizer()
    library.enable_truncation(4)
    library.enable_padding(length=4)
    text = "hello there " * 20
    tokenizer = FileTokenizer(library.to_str())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a").size == 1


# --- loading and saving


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), FILE_TOKENIZER, DNA], ids=["byte", "file", "dna"])
def test_what_was_saved_loads_again(tokenizer, tmp_path):
    directory = tmp_path / "run" / "tokenizer"
    ByteTokenizer().save(directory)  # an older one there is replaced
    tokenizer.save(directory)
    for spec in (directory, str(directory), directory / "tokenizer.json"):
        loaded = load_tokenizer(spec)
        assert type(loaded) is type(tokenizer)
        assert (loaded.vocab_size, loaded.eot) == (tokenizer.vocab_size, tokenizer.eot)
        text = "acgtn" if tokenizer is DNA else SAMPLE[1]
        np.testing.assert_array_equal(loaded.encode(text), tokenizer.encode(text))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b"[1]", b'{"type": "other"}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_broken_file_is_one_clear_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected a file") as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value).startswith(f"tokenizer = {str(tmp_path)!r}")
    assert "\n" not in str(caught.value)


def test_nothing_there_is_an_error(tmp_path):
    for spec in (tmp_path, tmp_path / "nowhere", "gpt3"):
        with pytest.raises(FileNotFoundError, match=r"expected 'byte', 'dna', 'gpt2', a tokenizer.json file"):
            load_tokenizer(spec)


def test_the_vocabulary_of_gpt2_is_known_without_its_file():
    assert find_vocab_size("gpt2") == presets.get("based-360m").vocab_size
    assert find_vocab_size("byte") == load_tokenizer("byte").vocab_size


def test_gpt2_comes_from_the_local_cache(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_text(_library_tokenizer().to_str())
    cache = {"gpt2": str(path)}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: cache.get(name))
    assert load_tokenizer("gpt2").name == "gpt2"
    cache.clear()
    with pytest.raises(FileNotFoundError, match=r"'gpt2'.*pass the path of GPT-2's tokenizer.json"):
        load_tokenizer("gpt2")


# --- streaming


def _stream(tokenizer: Tokenizer, ids) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*(decoder.feed(token) for token in ids), decoder.flush()]


@BOTH
@given(data=st.data())
def test_streamed_ids_equal_decoded_ids_whatever_a_model_samples(tokenizer, data):
    # Weighted towards lead and continuation bytes, where replacements and completions meet.
    lead = st.sampled_from([0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0xEF, 0xBF, 0xBD, 0xFF, 97])
    byte_ids = [] if tokenizer is FILE_TOKENIZER else [lead]
    ids = data.draw(st.lists(st.one_of(st.integers(0, tokenizer.vocab_size - 1), *byte_ids)))
    assert "".join(_stream(tokenizer, ids)) == tokenizer.decode(ids)


# --- nucleotides


@given(text=st.text(alphabet="ACGTNacgtn"))
def test_text_survives_the_round_trip_in_upper_case(text):
    ids = DNA.encode(text)
    assert ids.tolist() == ["ACGTN".index(letter) for letter in text.upper()]
    assert DNA.decode(ids) == DNA.decode(ids.tolist()) == text.upper()
    assert np.all(ids < DNA.eot)
    decoder = StreamDecoder(DNA)
    assert "".join([*map(decoder.feed, ids), decoder.flush()]) == text.upper()


@pytest.mark.parametrize(
    ("text", "position", "character"),
    [
        ("ACGX", 3, "X"),
        ("AC-GT", 2, "-"),
        ("\nA", 0, r"\\n"),
        ("Aé", 1, "é"),
        ("?", 0, r"\?"),
        ("A\u017f", 1, "\u017f"),
        ("AC\ud800", 2, r"\\ud800"),
    ],
)
def test_what_is_no_nucleotide_is_named_with_its_position(text, position, character):
    with pytest.raises(
        ValueError, match=f"character {position} of a sequence = '{character}': expected a nucl"
    ):
        DNA.encode(text)
