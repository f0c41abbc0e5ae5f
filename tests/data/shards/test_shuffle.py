"""The order of training from shards: each window once an epoch, from any position without the ones before."""

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
from based_jax.data.packed import TokenStream
from based_jax.data.shards.batches import Batches, ShuffledWindows
from based_jax.data.shards.permutation import make_key, permuted
from based_jax.data.shards.rows import pack_as_stored, pack_permuted, read_segments, read_tokens
from based_jax.data.shards.shuffle import GROUP, Order

LENGTH = 7

# What the first versions gave.
KEY = 5809300636878265108
PERMUTED = [6, 5, 2, 1, 7, 10, 4, 3, 9, 11, 8, 0]
POSITIONS = [
    [0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
    [19, 31, 23, 1, 31, 35, 19, 18, 19, 29],
    [7, 6, 7, 1, 24, 13, 8, 14, 13, 13],
]
OLD = [10, 5, 7, 3, 8, 4, 9, 2, 0, 11, 6, 1, 11, 8, 9, 3, 5, 0, 1, 10, 7, 4, 6, 2]


@dataclass(frozen=True, eq=False)
class Several(TokenStream):
    """Shards in memory, a `TokenStream`."""

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


SIZES = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), min_size=1, max_size=40)


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_a_permutation_has_every_number_once(size, key):
    assert sorted(permuted(np.arange(size), size, key).tolist()) == list(range(size))


def test_the_order_stays_what_it_is():
    """Another one would give runs that are resumed other data."""
    assert make_key(1, 2, 3) == KEY
    assert permuted(np.arange(12), 12, 5).tolist() == PERMUTED
    positions = Order(np.arange(1, 41), seed=3).positions(np.arange(815, 825))
    assert [array.tolist() for array in positions] == POSITIONS


@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=60).filter(any), seed=st.integers(0, 2**32))
def test_an_epoch_has_every_window_once(counts, seed):
    order = Order(np.array(counts), seed)
    positions = order.positions(np.arange(3 * order.windows))
    expected = sorted((shard, window) for shard, count in enumerate(counts) for window in range(count))
    for epoch in range(3):
        mine = positions.epoch == epoch
        assert (
            sorted(zip(positions.shard[mine].tolist(), positions.window[mine].tolist(), strict=True))
            == expected
        )


@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=60).filter(any),
    rows=st.lists(st.integers(0, 10**12), min_size=1, max_size=9),
)
def test_any_rows_are_where_they_are_alone(counts, rows):
    positions = Order(np.array(counts), 1).positions(np.array(rows))
    for number, row in enumerate(rows):
        alone = Order(np.array(counts), 1).positions(np.array([row]))
        assert all(array[number] == single[0] for array, single in zip(positions, alone, strict=True))


def test_a_group_is_done_before_the_next_one_begins():
    order = Order(np.full(3 * GROUP, 10), 0)
    shards = order.positions(np.arange(order.windows)).shard.reshape(3, 10 * GROUP)
    groups = [set(row.tolist()) for row in shards]
    assert [len(group) for group in groups] == [GROUP] * 3
    assert len(set.union(*groups)) == 3 * GROUP
    assert all(len(set(row[:40].tolist())) > 10 for row in shards), "a batch is of many shards"
    later = Order(np.full(3 * GROUP, 10), 0).positions(order.windows + np.arange(10 * GROUP)).shard
    assert set(later.tolist()) not in groups, "another epoch has other groups"


def test_the_shards_of_the_next_group_are_checked_ahead():
    order = Order(np.full(2 * GROUP + 3, 10), 0)
    shards = [
        sorted(set(order.positions(np.arange(order.windows) + start).shard[:30].tolist()))
        for start in (320, order.windows)
    ]
    assert sorted(order.group_after(319)) == shards[0]
    assert len(order.group_after(320)) == GROUP
    assert set(shards[1]) <= set(order.group_after(order.windows - 1))

    class Recorded(Several):
        def shard(self, number: int) -> PackedTokens:
            asked.append(number)
            if number % 2:
                raise ValueError("damaged")
            return super().shard(number)

    asked: list[int] = []
    source = ShuffledWindows(Recorded(several([[20]] * 20).shards), LENGTH, 0, "windows")
    ahead = source.order.group_after(0)
    thread = source._check_ahead(ahead)
    thread.join()
    assert asked == list(ahead)
    assert source._check_ahead(ahead) is thread, "once"


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=30), length=st.integers(1, 40))
def test_rows_are_windows_of_the_permuted_documents(sizes, length):
    shard = stream_of(sizes)
    documents = np.split(shard.tokens[:-1], shard.starts[1:])
    packing = pack_permuted(shard, 3)
    order = np.searchsorted(shard.starts, packing.begins + packing.shifts)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    stream = np.concatenate([*(documents[i] for i in order), [0]])
    for tokens, packed in ((stream, packing), (shard.tokens, pack_as_stored(shard))):
        expected = PackedTokens(tokens, packed.begins, 1)
        windows = np.arange(expected.num_windows(length, drop_last=True))[::-1]
        if windows.size:
            found = read_tokens(shard, packed, windows, length)
            segments = read_segments(packed, windows, length)
            for row, number in enumerate(windows.tolist()):
                window = expected.window(number, length)
                np.testing.assert_array_equal(found[row, :-1], window["inputs"])
                np.testing.assert_array_equal(found[row, 1:], window["targets"])
                np.testing.assert_array_equal(segments[row], window["segment_ids"])


def rows_of(batches, count: int) -> dict[str, np.ndarray]:
    drawn = [next(batches) for _ in range(count)]
    return {name: np.concatenate([batch[name] for batch in drawn]) for name in drawn[0]}


@given(sizes=SIZES, shuffle=st.sampled_from(["documents", "windows"]))
@settings(max_examples=40)
def test_an_epoch_of_batches_predicts_every_token_once_but_for_the_ends(sizes, shuffle):
    stream = several(sizes)
    count = stream.num_windows(LENGTH, drop_last=True)
    if not count:
        with pytest.raises(ValueError, match=r"stream = '\d+ tokens': expected at least 8 tokens"):
            train_iterator(stream, length=LENGTH, batch_size=1, seed=1, shuffle=shuffle)
        return
    source = ShuffledWindows(stream, LENGTH, 1, shuffle)
    for epoch in range(2):
        rows = source.read(np.arange(count) + epoch * count)
        targets = rows["targets"].reshape(-1)
        assert np.unique(targets[targets > 0]).size == np.count_nonzero(targets), "no token twice"
        assert targets.size == count * LENGTH
        inputs = rows["inputs"]
        # Within a document the tokens follow each other; across a border there is an EOT.
        ahead, same = rows["targets"], rows["targets"] != 0
        assert np.all((ahead == inputs + 1) | (inputs == 0) | ~same)
        borders = np.diff(rows["segment_ids"], axis=1) == 1
        np.testing.assert_array_equal(borders, inputs[:, 1:] == 0)
        assert np.all(rows["segment_ids"][:, 0] == 1)


def test_documents_are_packed_anew_in_every_epoch():
    stream = several([[3] * 50] * 2)
    count = stream.num_windows(LENGTH, drop_last=True)

    def windows(shuffle: str) -> list[set[bytes]]:
        source = ShuffledWindows(stream, LENGTH, 1, shuffle)
        epochs = (source.read(np.arange(count) + epoch * count)["targets"] for epoch in range(2))
        return [{row.tobytes() for row in rows} for rows in epochs]

    first, second = windows("windows")
    assert first == second
    first, second = windows("documents")
    assert len(first & second) < count / 4


@pytest.mark.parametrize("shuffle", ["documents", "windows"])
@pytest.mark.parametrize("cross_documents", [False, True])
def test_processes_share_one_order_and_resume_anywhere(shuffle, cross_documents):
    stream = several([[5, 9, 2, 30, 1], [14] * 6, [3], [40, 40]] * 6)
    given_ = {"length": LENGTH, "seed": 4, "shuffle": shuffle, "cross_documents": cross_documents}
    whole = rows_of(train_iterator(stream, batch_size=8, **given_), 40)
    assert sorted(whole) == ["inputs", *(["segment_ids"] * (not cross_documents)), "targets"]
    count = stream.num_windows(LENGTH, drop_last=True)
    assert count < 40 * 8, "a border of epochs"
    for processes in (2, 4):
        size = 8 // processes
        parts = []
        for index in range(processes):
            own = {"batch_size": size, "shard_index": index, "shard_count": processes}
            iterator = train_iterator(stream, **given_, **own)
            drawn = rows_of(iterator, 23)
            state = json.loads(json.dumps(iterator.get_state()))
            other = train_iterator(stream, **given_, **own)
            next(other)  # a position of its own, which must not matter
            other.set_state(state)
            assert other.get_state() == state
            rest = rows_of(other, 17)
            parts.append({name: np.concatenate([drawn[name], rest[name]]) for name in drawn})
        for name, array in whole.items():
            batches = [part[name].reshape(40, size, LENGTH) for part in parts]
            np.testing.assert_array_equal(np.concatenate(batches, axis=1).reshape(-1, LENGTH), array)
    # One process continues what four began.
    alone = train_iterator(stream, batch_size=8, **given_)
    alone.set_state(state)
    np.testing.assert_array_equal(rows_of(alone, 17)["targets"], whole["targets"][23 * 8 :])


@pytest.mark.parametrize("batch_size", [1, 3, 100, 300])
def test_batches_are_consecutive_rows(batch_size):
    rows = ShuffledWindows(several([[100] * 9] * 3), LENGTH, 1, "documents")
    batches = Batches(rows, batch_size, 1, 2)
    for number in (0, 1, 7, 300):
        first = (2 * number + 1) * batch_size
        expected = rows.read(np.arange(first, first + batch_size))
        for name, array in batches[number].items():
            np.testing.assert_array_equal(array, expected[name])


def test_a_state_of_another_shuffle_is_refused():
    stream = several([[30]])
    iterators = [
        train_iterator(stream, length=LENGTH, batch_size=1, seed=1, shuffle=shuffle)
        for shuffle in ("documents", "windows")
    ]
    with pytest.raises(ValueError, match=r"state\['shuffle'\] = 'documents': expected windows"):
        iterators[1].set_state(iterators[0].get_state())
    with pytest.raises(ValueError, match="shuffle = 'all': expected one of None, 'documents', 'windows'"):
        train_iterator(stream, length=LENGTH, batch_size=1, seed=1, shuffle="all")


def test_text_in_memory_is_shuffled_by_grain_unless_documents_are_asked_for():
    """As runs of earlier versions were, which are resumed."""
    stream = stream_of([12 * LENGTH - 1])
    for shuffle in (None, "windows"):
        iterator = train_iterator(stream, length=LENGTH, batch_size=4, seed=1, shuffle=shuffle)
        first = rows_of(iterator, 6)["inputs"][:, 0] // LENGTH
        assert first.tolist() == OLD
        assert set(iterator.get_state()["data"]) == {
            *("tokens", "checksum", "length"),
            *("global_batch_size", "seed"),
        }
    documents = stream_of([5] * 30)
    iterator = train_iterator(documents, length=LENGTH, batch_size=4, seed=1, shuffle="documents")
    assert iterator.get_state()["data"]["shuffle"] == "documents"
    assert rows_of(iterator, 3)["inputs"].shape == (12, LENGTH)
