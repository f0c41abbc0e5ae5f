"""The held-out side: each text is on one side, whatever copies, bounds, blocks and interruptions exist."""

import hashlib
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax.data import load_tokenizer
from based_jax.data.shards import tokenize as tokenizing
from based_jax.data.shards.blocks import find_sources
from based_jax.data.shards.manifest import HeldOutRule, Manifest
from based_jax.data.splits import position, positions


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("based_jax.data.shards.blocks.BLOCK", 60)
        patch.setattr("based_jax.data.readers._CHUNK", 30)
        patch.setattr("os.fsync", lambda file: None)  # takes most of the time
        yield


def run(folder: Path, out: str, rule: HeldOutRule, **more) -> Manifest | None:
    given_ = {"workers": 1, "rule": rule, "shard_tokens": 40, **more}
    sources = find_sources([str(folder / "a.jsonl")])
    return tokenizing.tokenize(sources, load_tokenizer(), folder / out, **given_)


def texts_of(directory: Path, side: str) -> list[str]:
    found = list[str]()
    for shard in Manifest.read(directory).splits[side].shards:
        tokens, starts = (np.load(directory / file) for file in (shard.file, shard.starts_file))
        documents = itertools.pairwise([*starts, tokens.size - 1])
        found += [load_tokenizer().decode(tokens[begin:end]) for begin, end in documents]
    return found


@given(
    texts=st.lists(st.text("ab é", min_size=1, max_size=6), min_size=1, max_size=60),
    fraction=st.sampled_from([0.0, 0.2, 0.7]),
    max_bytes=st.sampled_from([None, 1, 9, 30]),
    calls=st.lists(st.integers(1, 4), max_size=2),
)
@settings(max_examples=40)
def test_each_text_is_on_one_side(texts, fraction, max_bytes, calls):
    """Short texts of few letters have many copies."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, rule = Path(scratch), HeldOutRule(fraction, None, max_bytes)
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        below = sorted({text for text in texts if position(text) < fraction}, key=position)
        if max_bytes is not None:
            below = [text for text in below if len(text.encode()) <= max_bytes]
            sizes = np.cumsum([len(text.encode()) for text in below])
            below = below[: np.searchsorted(sizes, max_bytes, side="right")]
        if {*below} == {*texts}:
            with pytest.raises(ValueError, match="at least one training document"):
                run(folder, "out", rule)
            return
        run(folder, "out", rule)
        train, held_out = texts_of(folder / "out", "train"), texts_of(folder / "out", "held_out")
        assert {*held_out} == {*below}
        assert len(held_out) == len(below), "every text once"
        assert {*train} == {*texts} - {*below}
        # A copy is left out only while its text is held out, though that may be released later.
        assert len(train) >= sum(text not in below and position(text) >= fraction for text in texts)
        for count in calls:  # interrupted after so many blocks
            left = itertools.count(1 - count)
            run(folder, "again", rule, progress=lambda now, left=left: next(left) < 0)
        run(folder, "again", rule)
        for file in (folder / "out").rglob("*.*"):
            assert (folder / "again" / file.relative_to(folder / "out")).read_bytes() == file.read_bytes()


def test_the_share_is_close_to_the_fraction():
    count, fraction = 50_000, 0.03
    digests = [hashlib.sha256(f"text {number}".encode()).digest() for number in range(count)]
    found = positions(np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32))
    assert found[0] == position("text 0")
    deviation = np.sqrt(count * fraction * (1 - fraction))
    assert abs(np.count_nonzero(found < fraction) - count * fraction) < 4 * deviation
