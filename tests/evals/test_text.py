"""What evaluations read of token shards: the same as of the documents themselves."""

from itertools import pairwise

import numpy as np
import pytest

from based_jax.data import ByteTokenizer, Document, NucleotideTokenizer, PackedTokens
from based_jax.evals import text as text_module
from based_jax.evals.text import TextOptions, open_text, pack_text
from tests.data.shards.directories import write_shards

TRAIN = [["abracadabra", "banana"], ["one"], ["two two", "", "three"]]
HELD_OUT = [["held out", "another"], ["the last"]]


@pytest.fixture
def spec(tmp_path) -> str:
    return f"tokens:{write_shards(tmp_path / 'shards', TRAIN, HELD_OUT)}"


def pack(shards) -> PackedTokens:
    documents = [Document("", text) for texts in shards for text in texts]
    return PackedTokens.from_documents(documents, ByteTokenizer())


def pairs(stretches) -> list[tuple[int, int]]:
    return sorted((int(a), int(b)) for tokens in stretches for a, b in pairwise(tokens))


@pytest.mark.parametrize("stretch", [1, 4, 1000])
@pytest.mark.parametrize(("part", "shards"), [("all", TRAIN), ("train", TRAIN), ("held_out", HELD_OUT)])
def test_every_pair_of_the_shards_is_in_one_stretch(spec, part, shards, stretch, monkeypatch):
    monkeypatch.setattr(text_module, "_STRETCH", stretch)
    parts, checksum = open_text(TextOptions(spec, part=part), ByteTokenizer())
    assert len(parts) == len(shards)
    stretches = [read() for part in parts for read in part()]
    assert all(2 <= tokens.size <= stretch + 1 for tokens in stretches)
    assert pairs(stretches) == pairs([pack(shards).tokens])
    assert checksum == open_text(TextOptions(spec, part=part), ByteTokenizer())[1]


@pytest.mark.parametrize(("part", "shards"), [("all", HELD_OUT), ("train", TRAIN), ("held_out", HELD_OUT)])
def test_a_stream_is_that_of_the_documents(spec, part, shards):
    whole = pack(shards)
    for most in (len(whole), len(whole) - 1, len(whole) - 2, 10):
        packed, num_bytes = pack_text(TextOptions(spec, part=part), ByteTokenizer(), most)
        np.testing.assert_array_equal(packed.tokens, whole.tokens[: most + 1])
        np.testing.assert_array_equal(packed.starts, whole.starts[whole.starts < most])
        assert num_bytes == (whole.num_bytes if most >= len(whole) - 1 else None)


def test_the_tokenizer_is_that_of_the_shards(tmp_path):
    dna = f"tokens:{write_shards(tmp_path / 'dna', [['ACGT']], tokenizer=NucleotideTokenizer())}"
    with pytest.raises(ValueError, match=r"tokenizer = 'byte' with 257 tokens: expected that of the shards"):
        open_text(TextOptions(dna), ByteTokenizer())
    with pytest.raises(ValueError, match="no document"):
        pack_text(TextOptions(dna), NucleotideTokenizer(), 10)


@pytest.mark.parametrize(
    ("flag", "value"), [("include", "*"), ("held_out", 0.5), ("held_out_bytes", 9), ("held_out_names", "a")]
)
def test_flags_of_text_do_not_apply(spec, flag, value):
    with pytest.raises(ValueError, match=f"{flag} = .*: expected no such flag with --data tokens:"):
        pack_text(TextOptions(spec, **{flag: value}), ByteTokenizer(), 10)
