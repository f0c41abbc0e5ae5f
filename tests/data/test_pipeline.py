"""Batches: endless, shuffled and exactly resumable for training, each target once for evaluation."""

import itertools
import json

import chex
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import Batch, ByteTokenizer, Document, PackedTokens, held_out_batches, train_iterator

LENGTH = 8


def _packed(windows: int, extra: int = 0) -> PackedTokens:
    """A stream of `windows` full windows and `extra` more targets, no two windows alike."""
    size = windows * LENGTH + extra - 1  # bytes of text: the stream has an EOT before and one after it
    text = "".join(f"{number:07d} " for number in range(windows + 1))[:size]
    return PackedTokens.from_documents(
        [Document("a", text[:13]), Document("b", text[13:-1])], ByteTokenizer()
    )


def _iterator(packed: PackedTokens, **options):
    return train_iterator(packed, **{"length": LENGTH, "batch_size": 4, "seed": 1} | options)


def _take(batches, count: int) -> list[Batch]:
    return list(itertools.islice(batches, count))


def _window_numbers(packed: PackedTokens, batches: list[Batch]) -> list[int]:
    """Which window each row is."""
    windows = [packed.window(i, LENGTH) for i in range(packed.num_windows(LENGTH, drop_last=True))]
    numbers = {window["targets"].tobytes(): i for i, window in enumerate(windows)}
    assert len(numbers) == len(windows)
    return [numbers[row.tobytes()] for batch in batches for row in batch["targets"]]


def _assert_same(first: list[Batch], second: list[Batch]) -> None:
    assert first
    chex.assert_trees_all_equal(first, second)


def test_rows_are_windows_of_the_stream():
    packed = _packed(12)
    for batch in _take(_iterator(packed), 5):
        assert sorted(batch) == ["inputs", "segment_ids", "targets"]
        for array in batch.values():
            assert array.dtype == np.int32
            assert array.shape == (4, LENGTH)
        for row, number in enumerate(_window_numbers(packed, [batch])):
            window = packed.window(number, LENGTH)
            assert window.pop("mask").all()
            for key, value in window.items():
                np.testing.assert_array_equal(batch[key][row], value)


@pytest.mark.parametrize("extra", [0, 1, LENGTH - 1])
def test_every_epoch_has_every_full_window_once_in_a_new_order(extra):
    packed = _packed(40, extra)
    assert packed.num_windows(LENGTH, drop_last=True) == 40
    numbers = _window_numbers(packed, _take(_iterator(packed), 30))
    epochs = [tuple(numbers[start : start + 40]) for start in (0, 40, 80)]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert len({*epochs, tuple(range(40))}) == 4


def test_the_order_is_that_of_the_seed():
    packed = _packed(40)
    _assert_same(_take(_iterator(packed), 15), _take(_iterator(packed), 15))
    first_batches = {tuple(_window_numbers(packed, _take(_iterator(packed, seed=s), 10))) for s in range(20)}
    assert len(first_batches) == 20
    later = _window_numbers(packed, _take(_iterator(packed, seed=0), 20))[40:]
    assert later != _window_numbers(packed, _take(_iterator(packed, seed=1), 10)), "seeds are not epochs"


@pytest.mark.parametrize(("windows", "batch_size"), [(10, 4), (1, 1)])
def test_resuming_is_exact_from_every_position(windows, batch_size):
    packed = _packed(windows, 3)
    total = 3 * -(-windows // batch_size) + 2  # over three borders of epochs
    expected = _take(_iterator(packed, batch_size=batch_size), total)
    iterator = _iterator(packed, batch_size=batch_size)
    for drawn in range(total):
        state = json.loads(json.dumps(iterator.get_state()))
        other = _iterator(packed, batch_size=batch_size)
        _take(other, 2)  # a position of its own, which must not matter
        other.set_state(state)
        assert other.get_state() == state
        _assert_same(_take(other, total - drawn), expected[drawn:])
        _assert_same([next(iterator)], [expected[drawn]])


@pytest.mark.parametrize(
    ("options", "key"),
    [({"seed": 2}, "seed"), ({"length": 4}, "length"), ({"batch_size": 2}, "global_batch_size")],
)
def test_a_state_of_another_iterator_is_refused(options, key):
    packed = _packed(12)
    with pytest.raises(ValueError, match=rf"state\['{key}'\] = .*expected"):
        _iterator(packed, **options).set_state(_iterator(packed).get_state())


def test_a_state_of_other_data_is_refused():
    state = _iterator(_packed(12)).get_state()
    other = PackedTokens(_packed(12).tokens[::-1].copy(), _packed(12).starts, _packed(12).num_bytes)
    with pytest.raises(ValueError, match=r"state\['checksum'\]"):
        _iterator(other).set_state(state)
    for broken in ({}, {"place": {"next_index": 1}}, None):
        with pytest.raises(ValueError, match=r"state\['tokens'\] = None: expected"):
            _iterator(_packed(12)).set_state(broken)


def test_segments_are_left_out_on_request():
    packed = _packed(12)
    across = _take(_iterator(packed, cross_documents=True), 4)
    within = _take(_iterator(packed), 4)
    assert all(sorted(batch) == ["inputs", "targets"] for batch in across)
    _assert_same(across, [{key: batch[key] for key in ("inputs", "targets")} for batch in within])
    assert sorted(next(held_out_batches(packed, length=5, batch_size=2, cross_documents=True))) == [
        "inputs",
        "mask",
        "targets",
    ]


@given(data=st.data())
def test_held_out_batches_have_every_target_once_in_order(data):
    texts = data.draw(st.lists(st.text(max_size=20), min_size=1, max_size=5))
    length, rows, shard_count = (data.draw(st.integers(1, high)) for high in (12, 5, 3))
    packed = PackedTokens.from_documents([Document("", text) for text in texts], ByteTokenizer())
    shards = [
        list(
            held_out_batches(
                packed, length=length, batch_size=rows, shard_index=index, shard_count=shard_count
            )
        )
        for index in range(shard_count)
    ]
    assert len({len(shard) for shard in shards}) == 1
    batches = [batch for step in zip(*shards, strict=True) for batch in step]
    assert all(value.shape == (rows, length) for batch in batches for value in batch.values())
    targets = np.concatenate([batch["targets"][batch["mask"]] for batch in batches])
    np.testing.assert_array_equal(targets, packed.tokens[1:])
    real = np.concatenate([batch["mask"].any(axis=1) for batch in batches])
    assert np.all(np.diff(real.astype(int)) <= 0), "rows of padding are last"
    dtypes = dict.fromkeys(("inputs", "targets", "segment_ids"), np.int32) | {"mask": bool}
    for batch in batches:
        assert {key: value.dtype for key, value in batch.items()} == dtypes
        assert batch["segment_ids"].min() >= 1
        assert batch["inputs"].max() <= 256


def test_a_stream_shorter_than_a_window_is_an_error_with_both_numbers():
    packed = PackedTokens.from_documents([Document("a", "abc")], ByteTokenizer())
    assert len(_take(_iterator(packed, length=4), 1)) == 1
    with pytest.raises(ValueError, match=r"5 tokens.*at least 6 tokens.*length = 5"):
        _iterator(packed, length=5)
    assert len(list(held_out_batches(packed, length=5, batch_size=2))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length = 0: expected at least 1"),
        ({"batch_size": 0}, "batch_size = 0: expected at least 1"),
        ({"shard_count": 0}, "shard_count = 0: expected at least 1"),
        ({"shard_index": 2, "shard_count": 2}, "shard_index = 2: expected 0 to 1"),
        ({"shard_index": -1}, "shard_index = -1: expected 0 to 0"),
    ],
)
def test_bad_arguments_are_errors_at_the_call(options, message):
    with pytest.raises(ValueError, match=message):
        _iterator(_packed(3), **options)
    with pytest.raises(ValueError, match=message):
        held_out_batches(_packed(3), **{"length": LENGTH, "batch_size": 4} | options)
