"""Nucleotides: the alphabet, round trips, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import NucleotideTokenizer, StreamDecoder, Tokenizer, load_tokenizer

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


def test_what_was_saved_loads_again(tmp_path):
    DNA.save(tmp_path)
    for spec in ("dna", tmp_path, tmp_path / "tokenizer.json"):
        assert isinstance(load_tokenizer(spec), NucleotideTokenizer)
