"""Nucleotides: the alphabet, round trips, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import (
    Document,
    NucleotideTokenizer,
    PackedTokens,
    StreamDecoder,
    Tokenizer,
    load_tokenizer,
)

DNA = NucleotideTokenizer()


def test_the_vocabulary():
    assert isinstance(DNA, Tokenizer)
    assert (DNA.vocab_size, DNA.eot) == (6, 5)
    ids = DNA.encode("ACGTN")
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, [0, 1, 2, 3, 4])
    assert DNA.encode("").shape == (0,)
    assert DNA.decode([]) == ""


@given(text=st.text(alphabet="ACGTNacgtn"))
def test_text_survives_the_round_trip_in_upper_case(text):
    ids = DNA.encode(text)
    assert DNA.decode(ids) == DNA.decode(ids.tolist()) == text.upper()
    assert np.all(ids < DNA.eot)
    decoder = StreamDecoder(DNA)
    assert "".join([*map(decoder.feed, ids), decoder.flush()]) == text.upper()


def test_other_codes_of_the_alphabet():
    assert DNA.decode(DNA.encode("RYSWKMBDHVryswkmbdhv")) == "N" * 20
    assert DNA.decode(DNA.encode("UuTt")) == "TTTT"


def test_ids_without_a_letter_are_left_out():
    assert DNA.decode([5, 0, 7, 3, 5]) == "AT"
    with pytest.raises(ValueError, match=r"ids = .*expected one dimension of integers"):
        DNA.decode([-1])


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


def test_a_packed_base_is_a_byte():
    packed = PackedTokens.from_documents([Document("a", "acgt"), Document("b", "nn")], DNA)
    assert packed.tokens.dtype == np.uint8
    np.testing.assert_array_equal(packed.tokens, [5, 0, 1, 2, 3, 5, 4, 4, 5])
    assert packed.num_bytes == 6
    assert packed.window(0, 8)["inputs"].dtype == np.int32


def test_what_was_saved_loads_again(tmp_path):
    DNA.save(tmp_path)
    for spec in ("dna", tmp_path, tmp_path / "tokenizer.json"):
        assert isinstance(load_tokenizer(spec), NucleotideTokenizer)
