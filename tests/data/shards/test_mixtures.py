"""Training on several shards and sources: each window once an epoch, each source with its share."""

import functools
import itertools
import json
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax.data import PackedTokens, train_iterator
from based_jax.data.packed import Mixture, TokenStream, parse_mixture

LENGTH = 7
SIZES = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), min_size=1, max_size=40)


@dataclass(frozen=True, eq=False)
class Several(TokenStream):
    """Shards in memory."""

    shards: tuple[PackedTokens, ...]

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        return np.array([len(shard) for shard in self.shards])

    @functools.cached_property
    def checksum(self) -> int:
        return zlib.crc32(repr([shard.checksum for shard in self.shards]).encode())

    num_bytes = 1

    def shard(self, number: int) -> PackedTokens:
        return self.shards[number]


def stream_of(sizes: list[int], first: int = 1) -> PackedTokens:
    """Documents of these sizes whose tokens are all different; EOT is 0."""
    documents = np.split(np.arange(first, first + sum(sizes)), np.cumsum(sizes)[:-1])
    tokens = np.concatenate([part for document in documents for part in ([0], document)] + [[0]])
    return PackedTokens(tokens.astype(np.uint32), np.cumsum([0, *(size + 1 for size in sizes[:-1])]), 1)


def several(sizes: list[list[int]]) -> Several:
    firsts = itertools.accumulate((sum(own) for own in sizes), initial=1)
    return Several(tuple(stream_of(own, first) for own, first in zip(sizes, firsts, strict=False)))


def rows_of(batches, count: int) -> dict[str, np.ndarray]:
    drawn = [next(batches) for _ in range(count)]
    return {name: np.concatenate([batch[name] for batch in drawn]) for name in drawn[0]}


@pytest.mark.release
@given(sizes=SIZES)
@settings(max_examples=30)
def test_an_epoch_predicts_every_token_once_but_for_the_ends_of_shards(sizes):
    stream = several(sizes)
    count = stream.num_windows(LENGTH, drop_last=True)
    if not count:
        with pytest.raises(ValueError, match=r"stream = '\d+ tokens': expected at least 8 tokens"):
            train_iterator(stream, length=LENGTH, batch_size=1, seed=1)
        return
    windows = {row["targets"].tobytes() for shard in stream.shards for row in full(shard)}
    batches = train_iterator(stream, length=LENGTH, batch_size=1, seed=1)
    for _ in range(2):
        rows = rows_of(batches, count)
        assert {row.tobytes() for row in rows["targets"]} == windows
        borders = np.diff(rows["segment_ids"], axis=1) == 1
        np.testing.assert_array_equal(borders, rows["inputs"][:, 1:] == 0)
    batches.close()


def full(shard):
    return (shard.window(i, LENGTH) for i in range(shard.num_windows(LENGTH, drop_last=True)))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("stdlib", None),
        ("a=0.5", None),
        ("a,b", None),
        ("a=1,b", None),
        ("a=0.7,b=3e-1", {"a": 0.7, "b": 0.3}),
        ("tokens:x/y=3, c=d/*.txt=.5", {"tokens:x/y": 3, "c=d/*.txt": 0.5}),
    ],
)
def test_specs_of_mixtures(spec, expected, tmp_path, monkeypatch):
    assert parse_mixture(spec) == expected
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=0.7,b=0.3").write_text("a file may be called like a mixture")
    assert parse_mixture("a=0.7,b=0.3") is None


def test_bad_weights_are_one_error():
    bad = ("a=0.7,b=0", "a=0.7,b=-1", "a=1e308,b=1e308")
    messages = dict.fromkeys(bad, "weights above 0") | {"a=0.7,a=0.3": "each source once"}
    for spec, message in messages.items():
        with pytest.raises(ValueError, match=f"data = '{spec}': expected {message}"):
            parse_mixture(spec)


def mixture(weights=(3.0, 1.0, 1.0)) -> Mixture:
    """Two sources in shards, one in memory; a row's tokens show which one it is from."""
    parts = several([[9] * 9] * 3), several([[30, 2, 5]] * 20), stream_of([40] * 5, first=10_000)
    return Mixture(("a", "b", "c"), parts, weights)


def test_each_source_has_its_share_and_an_order_of_its_own():
    parts = tuple(stream_of([300], first) for first in (1, 1001, 2001))
    data = Mixture(("a", "b", "c"), parts, (3.0, 1.0, 1.0))
    firsts = rows_of(train_iterator(data, length=LENGTH, batch_size=10, seed=3), 20)["targets"][:, 0]
    source, window = np.divmod(firsts, 1000)
    for end in (10, 50, 200):
        assert np.abs(np.bincount(source[:end]) - end * np.array([0.6, 0.2, 0.2])).max() <= 2
    orders = [(window[source == number] // LENGTH).tolist()[:40] for number in range(3)]
    assert all(len(set(order)) == 40 for order in orders)
    assert orders[1] != orders[2] != orders[0][:40]


@pytest.mark.parametrize("data", [mixture(), several([[5, 9, 2, 30, 1], [14] * 6, [3], [40, 40]] * 6)])
def test_processes_share_one_order_and_resume_anywhere(data):
    given_ = {"length": LENGTH, "seed": 3, "cross_documents": True}
    whole = rows_of(train_iterator(data, batch_size=4, **given_), 40)["inputs"]
    pairs = [
        train_iterator(data, batch_size=2, shard_index=index, shard_count=2, **given_) for index in (0, 1)
    ]
    first = [rows_of(iterator, 19)["inputs"].reshape(19, 2, LENGTH) for iterator in pairs]
    np.testing.assert_array_equal(np.concatenate(first, axis=1).reshape(-1, LENGTH), whole[: 19 * 4])
    alone = train_iterator(data, batch_size=4, **given_)
    alone.set_state(json.loads(json.dumps(pairs[1].get_state())))
    np.testing.assert_array_equal(rows_of(alone, 21)["inputs"], whole[19 * 4 :])


def test_other_weights_are_other_data():
    states = [
        train_iterator(mixture(weights), length=LENGTH, batch_size=2, seed=1).get_state()
        for weights in ((3.0, 1.0, 1.0), (6.0, 2.0, 2.0), (3.0, 1.0, 2.0))
    ]
    assert states[0] == states[1] != states[2]
    with pytest.raises(ValueError, match=r"state\['checksum'\]"):
        train_iterator(mixture(), length=LENGTH, batch_size=2, seed=1).set_state(states[2])
