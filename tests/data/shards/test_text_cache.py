"""The cache of tokenized text: the same streams, read again only if what they depend on has changed."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from based_jax.data import ByteTokenizer, NucleotideTokenizer, PackedTokens, load_documents, split_documents
from based_jax.data.shards.manifest import HeldOutRule
from based_jax.data.shards.text_cache import PackedText, load_cached

RULE = HeldOutRule(0.3, None, 1000)


class Reads:
    """Reads the text below a directory, and counts how often."""

    def __init__(self, folder: Path, tokenizer=None):
        self.folder, self.count = folder, 0
        self.tokenizer = tokenizer or ByteTokenizer()

    def __call__(self) -> PackedText:
        self.count += 1
        sides = split_documents(load_documents(str(self.folder)).documents, fraction=0.3)
        train, held_out = (PackedTokens.from_documents(side, self.tokenizer) for side in sides)
        return PackedText(train, held_out, {"data": "twelve files"})

    def cached(self, directory: Path, rule: HeldOutRule = RULE) -> PackedText:
        return load_cached(directory, str(self.folder), None, rule, self.tokenizer, self)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "text").mkdir()
    for number in range(12):
        (tmp_path / "text" / f"{number}.txt").write_text("acgt" * (number + 1))
    return tmp_path / "text"


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), NucleotideTokenizer()])
def test_both_sides_are_those_of_the_text(folder, tmp_path, tokenizer):
    reads = Reads(folder, tokenizer)
    expected = reads()
    for _ in range(3):
        found = reads.cached(tmp_path / "cache")
        for side in ("training", "held_out"):
            ours, theirs = getattr(found, side), getattr(expected, side)
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            np.testing.assert_array_equal(ours.starts, theirs.starts)
            assert ours.num_bytes == theirs.num_bytes
            assert isinstance(ours.tokens, np.memmap)
            if theirs.tokens.dtype == np.uint16:  # shards have no smaller one
                assert ours.checksum == theirs.checksum
        (kept,) = (tmp_path / "cache").iterdir()
        assert found.summary == {"data": "twelve files", "cache": str(kept)}
    assert reads.count == 2


def test_what_the_tokens_depend_on_is_compared(folder, tmp_path):
    cache, reads = tmp_path / "cache", Reads(folder)
    reads.cached(cache)

    def again(reads: Reads, rule: HeldOutRule = RULE) -> int:
        before = reads.count
        reads.cached(cache, rule)
        return reads.count - before

    assert again(reads) == 0
    assert again(reads, dataclasses.replace(RULE, fraction=0.4)) == 1
    assert again(Reads(folder, NucleotideTokenizer())) == 1
    os.utime(folder / "3.txt", ns=(1, 1))
    assert again(reads) == 1
    (folder / "new.txt").write_text("a")
    assert again(reads) == 1
    assert again(reads) == 0
    assert len(list(cache.iterdir())) == 5


def test_files_that_change_while_they_are_read_are_not_kept(folder, tmp_path):
    class Slow(Reads):
        def __call__(self) -> PackedText:
            found = super().__call__()
            (folder / f"new{self.count}.txt").write_text("a")
            return found

    assert Slow(folder).cached(tmp_path / "cache").summary == {"data": "twelve files"}
    assert not list((tmp_path / "cache").iterdir())


def test_a_data_set_of_the_hub_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cache = .*: expected files as --data, not hf:tiny"):
        load_cached(tmp_path, "hf:tiny", None, RULE, ByteTokenizer(), Reads(tmp_path))
