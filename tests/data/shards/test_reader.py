"""TokenShards: the windows of the shards' streams, nothing in memory, and every kind of damage by name."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from based_jax.data import ByteTokenizer, Document, NucleotideTokenizer, PackedTokens
from based_jax.data.shards.reader import TokenShards, expect_same_tokenizer
from tests.data.shards.directories import write_shards

TRAIN = [["Hello, world", "", "\N{SNOWMAN} and more"], ["x" * 40], ["a", "bc", "def"]]
HELD_OUT = [["one text", "another"], ["the last"]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), TRAIN, HELD_OUT)


def pack(texts) -> PackedTokens:
    return PackedTokens.from_documents([Document("", text) for text in texts], ByteTokenizer())


@pytest.mark.parametrize(("side", "texts"), [("train", TRAIN), ("held_out", HELD_OUT)])
def test_each_shard_is_the_stream_of_its_documents(directory, side, texts):
    shards = TokenShards.open(directory, side)
    streams = [pack(documents) for documents in texts]
    assert shards.sizes.tolist() == [len(stream) for stream in streams]
    assert (len(shards), shards.num_bytes) == (
        sum(map(len, streams)),
        sum(stream.num_bytes for stream in streams),
    )
    for number, stream in enumerate(streams):
        shard = shards.shard(number)
        np.testing.assert_array_equal(shard.tokens, stream.tokens)
        np.testing.assert_array_equal(shard.starts, stream.starts)
        assert shard.num_bytes == stream.num_bytes
    for length in (1, 5, 13, 100):
        windows = [
            stream.window(i, length)
            for stream in streams
            for i in range(stream.num_windows(length, drop_last=False))
        ]
        assert shards.num_windows(length, drop_last=False) == len(windows)
        full = sum(stream.num_windows(length, drop_last=True) for stream in streams)
        assert shards.num_windows(length, drop_last=True) == full
        for i, expected in enumerate(windows):
            found = shards.window(i, length)
            assert found.keys() == expected.keys()
            for name in expected:
                np.testing.assert_array_equal(found[name], expected[name])
        with pytest.raises(IndexError, match=f"expected 0 <= i < {len(windows)}"):
            shards.window(len(windows), length)


def test_opening_reads_no_token(directory, monkeypatch):
    monkeypatch.setattr(np, "load", None)
    shards = TokenShards.open(directory)
    assert shards.num_windows(4, drop_last=True) > 0
    assert shards.checksum != TokenShards.open(directory, "held_out").checksum


@pytest.mark.parametrize("tokens", [1000, 60, 41, 17, 2])
def test_the_head_is_one_stream_in_memory(directory, tokens):
    whole = pack([text for texts in TRAIN for text in texts])
    head = TokenShards.open(directory).head(tokens)
    np.testing.assert_array_equal(head.tokens, whole.tokens[:tokens])
    np.testing.assert_array_equal(head.starts, whole.starts[whole.starts < tokens])
    assert not isinstance(head.tokens, np.memmap)


@pytest.fixture
def copy(directory, tmp_path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "copy"))


def test_a_damaged_shard_is_refused_by_name_when_it_is_read(copy):
    file = copy / "train" / "00001.tokens.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    shards = TokenShards.open(copy)
    shards.shard(0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"00001\.tokens\.npy = 'CRC-32 .*the file is damaged"):
            shards.shard(1)


def test_a_truncated_shard_is_refused_by_name_when_it_is_opened(copy):
    file = copy / "train" / "00002.starts.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"00002\.starts\.npy: expected an \.npy file of int64"):
        TokenShards.open(copy)
    file.write_bytes(b"\x93NUM")
    with pytest.raises(ValueError, match=r"00002\.starts\.npy: expected an \.npy file"):
        TokenShards.open(copy)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"00002\.starts\.npy: expected .*, but there is none"):
        TokenShards.open(copy)


def test_another_tokenizer_is_refused(copy):
    shards = TokenShards.open(copy)
    expect_same_tokenizer(shards, ByteTokenizer())
    with pytest.raises(ValueError, match=r"tokenizer = 'dna' with 6 tokens: expected that of the shards in"):
        expect_same_tokenizer(shards, NucleotideTokenizer())
    NucleotideTokenizer().save(copy)
    with pytest.raises(ValueError, match=r"tokenizer\.json = 'SHA-256"):
        TokenShards.open(copy).tokenizer  # noqa: B018
