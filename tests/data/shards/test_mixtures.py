"""Mixtures: each source has its share of every stretch of rows, and its own order of them."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import train_iterator
from based_jax.data.shards.batches import ShuffledWindows
from based_jax.data.shards.mixtures import Mixture, assign, parse_mixture
from based_jax.data.shards.permutation import make_key
from tests.data.shards.test_shuffle import LENGTH, rows_of, several, stream_of

WEIGHTS = st.lists(st.integers(1, 10**6).map(lambda n: Fraction(n, 1000)), min_size=1, max_size=6)


@given(weights=WEIGHTS, rows=st.integers(1, 500))
def test_every_prefix_of_the_rows_has_the_shares(weights, rows):
    source, own = assign(np.arange(rows), weights)
    for number, weight in enumerate(weights):
        mine = source == number
        assert own[mine].tolist() == list(range(mine.sum())), "the rows of a source are numbered from 0"
        share = float(weight / sum(weights))
        error = np.abs(np.cumsum(mine) - np.arange(1, rows + 1) * share).max()
        assert error <= len(weights)


@given(weights=WEIGHTS, rows=st.lists(st.integers(0, 10**14), min_size=1, max_size=5))
def test_any_row_is_where_it_is_alone(weights, rows):
    """And in all rows before it each source has its share, however many they are."""
    source, own = assign(np.array(rows), weights)
    for number, row in enumerate(rows):
        alone = assign(np.array([row]), weights)
        assert (source[number], own[number]) == (alone[0][0], alone[1][0])
        share = weights[source[number]] / sum(weights)
        assert abs(own[number] - row * share) <= len(weights)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("stdlib", None),
        ("tokens:a", None),
        ("a=0.5", None),
        ("a,b", None),
        ("a=1,b", None),
        ("a=0.7,b=0.3", {"a": Fraction(7, 10), "b": Fraction(3, 10)}),
        ("tokens:x/y=3, c=d/*.txt=.5", {"tokens:x/y": Fraction(3), "c=d/*.txt": Fraction(1, 2)}),
    ],
)
def test_specs_of_mixtures(spec, expected):
    assert parse_mixture(spec) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("a=0.7,b=0", "weights above 0"),
        ("a=0.7,a=0.3", "each source once"),
        ("a=0.1234567891,b=1", "weights with fewer digits"),
    ],
)
def test_bad_weights_are_one_error(spec, message):
    with pytest.raises(ValueError, match=f"data = '{spec}': expected {message}"):
        parse_mixture(spec)


def test_a_file_may_be_called_like_a_mixture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=1,b=2").write_text("text")
    assert parse_mixture("a=1,b=2") is None


def mixture(weights=(Fraction(3), Fraction(1), Fraction(1))) -> Mixture:
    """Two sources in shards, one in memory; a row's tokens show which one it is from."""
    parts = several([[9] * 9] * 3), several([[30, 2, 5]] * 20), stream_of([40] * 5, first=10_000)
    return Mixture(("a", "b", "c"), parts, tuple(weights))


def test_rows_are_those_of_the_sources():
    data, size = mixture(), 10
    given_ = {"length": LENGTH, "batch_size": size, "seed": 3}
    rows = rows_of(train_iterator(data, **given_), 60)
    source, own = assign(np.arange(60 * size), data.weights)
    for number, part in enumerate(data.parts):
        alone = ShuffledWindows(part, LENGTH, make_key(3, number), "documents")
        expected = alone.read(own[source == number])
        for name, array in rows.items():
            np.testing.assert_array_equal(array[source == number], expected[name])
    assert np.bincount(source).tolist() == [360, 120, 120]
    assert all(np.bincount(batch).tolist() == [6, 2, 2] for batch in source.reshape(60, size))


def test_a_mixture_resumes_in_any_number_of_processes():
    given_ = {"length": LENGTH, "seed": 3, "cross_documents": True}
    whole = rows_of(train_iterator(mixture(), batch_size=4, **given_), 20)["inputs"]
    pairs = [
        train_iterator(mixture(), batch_size=2, shard_index=index, shard_count=2, **given_)
        for index in (0, 1)
    ]
    first = [rows_of(iterator, 9)["inputs"].reshape(9, 2, LENGTH) for iterator in pairs]
    np.testing.assert_array_equal(np.concatenate(first, axis=1).reshape(-1, LENGTH), whole[: 9 * 4])
    alone = train_iterator(mixture(), batch_size=4, **given_)
    alone.set_state(json.loads(json.dumps(pairs[1].get_state())))
    np.testing.assert_array_equal(rows_of(alone, 11)["inputs"], whole[9 * 4 :])


def test_other_weights_are_other_data():
    states = [
        train_iterator(mixture(weights), length=LENGTH, batch_size=2, seed=1).get_state()
        for weights in ((3, 1, 1), (6, 2, 2), (3, 1, 2))
        for weights in [tuple(map(Fraction, weights))]
    ]
    assert states[0] == states[1] != states[2]
    with pytest.raises(ValueError, match=r"state\['checksum'\]"):
        train_iterator(mixture(), length=LENGTH, batch_size=2, seed=1).set_state(states[2])
