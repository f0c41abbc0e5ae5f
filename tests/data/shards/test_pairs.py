"""Megatron's pairs in place: the stream of all documents but each file's first, in shards of any size."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from based_jax.data import ByteTokenizer, Document, PackedTokens, train_iterator
from based_jax.data.shards import pairs
from based_jax.data.shards.pairs import TokenPairs, find_pairs
from based_jax.data.shards.specs import load_data_tokenizer, open_tokens, shard_directory
from based_jax.evals.text import TextOptions, open_text, pack_text
from tests.data.shards.megatron import write_megatron

BYTE = ByteTokenizer()
TEXTS = ["", *(f"text {n} " * (n % 7) for n in range(40))]


def ids_of(texts: list[str]) -> list[list[int]]:
    return [[*text.encode(), 256] for text in texts]


def pack(texts: list[str]) -> PackedTokens:
    return PackedTokens.from_documents([Document("", text) for text in texts], BYTE)


@pytest.fixture
def directory(tmp_path) -> Path:
    write_megatron(tmp_path / "pile" / "b.idx", ids_of(TEXTS[20:]), "<i4")
    write_megatron(tmp_path / "pile" / "a.idx", ids_of(TEXTS[:20]))
    return tmp_path / "pile"


@pytest.mark.parametrize("shard", [1, 30, 100, 1000])
def test_shards_are_streams_of_all_documents_but_the_first_of_a_file(directory, shard, monkeypatch):
    monkeypatch.setattr(pairs, "SHARD", shard)
    monkeypatch.setattr(pairs, "_CHUNK", 16)
    opened = TokenPairs.open(directory, "train", BYTE)
    found = list[str]()
    for number, size in enumerate(opened.sizes):
        packed = opened.shard(number)
        assert isinstance(packed.tokens, np.memmap)
        texts = [BYTE.decode(ids) for ids in np.split(packed.tokens, packed.starts[1:])]
        expected = pack(texts)
        assert len(packed) == size
        np.testing.assert_array_equal(packed.tokens, expected.tokens)
        np.testing.assert_array_equal(packed.starts, expected.starts)
        found += texts
    assert found == TEXTS[1:20] + TEXTS[21:]
    longest = max(map(len, TEXTS)) + 1
    assert opened.sizes.max() <= 1 + shard + longest
    assert opened.sizes.size <= 2 + opened.sizes.sum() / shard


def test_an_epoch_has_each_window_once(directory, monkeypatch):
    monkeypatch.setattr(pairs, "SHARD", 100)
    opened = TokenPairs.open(directory, "train", BYTE)
    count = opened.num_windows(8, drop_last=True)
    batches = train_iterator(opened, length=8, batch_size=1, seed=1, shuffle="windows")
    drawn = Counter(next(batches)["targets"].tobytes() for _ in range(count))
    stored = (
        shard.window(i, 8)["targets"].tobytes()
        for shard in map(opened.shard, range(opened.sizes.size))
        for i in range(shard.num_windows(8, drop_last=True))
    )
    assert drawn == Counter(stored)


def test_a_spec_names_a_pair_or_a_directory_of_them(directory, tmp_path):
    file = directory / "a.idx"
    paths = [directory, file, file.with_suffix(".bin")]
    for spec in [*map(str, paths), *(f"tokens:{path}" for path in paths)]:
        found = shard_directory(spec)
        assert found is not None
        assert find_pairs(found) == ([file, directory / "b.idx"] if "pile/" not in spec else [file])
        assert isinstance(open_tokens(found, "train", BYTE), TokenPairs)
        assert not find_pairs(found, "held_out")
    (directory / "a.bin").unlink()
    assert find_pairs(directory) == [directory / "b.idx"]
    assert shard_directory(str(tmp_path)) is None


def test_sides_are_directories(tmp_path):
    write_megatron(tmp_path / "train" / "a.idx", ids_of(TEXTS))
    assert not find_pairs(tmp_path, "held_out")
    write_megatron(tmp_path / "held_out" / "b.idx", ids_of(["x", "yes", "no"]))
    opened = TokenPairs.open(tmp_path, "held_out", BYTE)
    assert BYTE.decode(opened.head(99).tokens) == "yesno"
    packed, num_bytes = pack_text(TextOptions(str(tmp_path)), BYTE, 100)
    assert (BYTE.decode(packed.tokens), num_bytes) == ("yesno", None)
    ((part,), _) = open_text(TextOptions(str(tmp_path)), BYTE)
    assert BYTE.decode(part()[0]) == "".join(TEXTS)


def test_the_checksum_is_that_of_borders_and_samples(directory):
    def checksum() -> int:
        return TokenPairs.open(directory, "train", BYTE).checksum

    before = checksum()
    assert checksum() == before
    content = bytearray((directory / "b.bin").read_bytes())
    content[-12] ^= 1
    (directory / "b.bin").write_bytes(content)
    assert checksum() != before


def test_the_tokenizer_has_to_be_named(directory):
    with pytest.raises(ValueError, match=r"tokenizer = None: expected that of the ids in .*pile"):
        load_data_tokenizer([str(directory)], None)
    assert load_data_tokenizer([str(directory)], "byte").vocab_size == 257


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([[1, 2, 256], [3, 300, 256]], r"a\.bin, token ids = \(3, 300\): expected from 0 to 256"),
        (
            [[1, 2], [3, 4]],
            r"last ids of documents = \(2, 4\): expected 256.*train tokenize",
        ),
        ([[1, 2, 256]], r"a\.idx, documents = 1: expected at least 2; based-jax train tokenize"),
    ],
)
def test_what_is_no_such_stream_is_refused(tmp_path, documents, message):
    write_megatron(tmp_path / "a.idx", documents)
    with pytest.raises(ValueError, match=message):
        TokenPairs.open(tmp_path, "train", BYTE).shard(0)


def test_documents_of_several_sequences_are_refused(tmp_path):
    path = write_megatron(tmp_path / "a.idx", ids_of(["a", "b", "c"]))
    content = bytearray(path.read_bytes())
    content[26:34] = (3).to_bytes(8, "little")  # one border less
    path.write_bytes(content[:-8])
    with pytest.raises(ValueError, match=r"a\.idx, sequences = 3: expected 2, one for each document"):
        TokenPairs.open(tmp_path, "train", BYTE)


def test_pointers_that_do_not_increase_are_refused(tmp_path):
    path = write_megatron(tmp_path / "a.idx", ids_of(["a", "b", "c"]))
    content = bytearray(path.read_bytes())
    begin = 34 + 4 * 3 + 8
    content[begin : begin + 8] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.idx, pointers = .*expected increasing ones"):
        TokenPairs.open(tmp_path, "train", BYTE)
