"""Repeats, slices, the gap and the histograms against definitions spelled out in loops."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import PackedTokens
from based_jax.evals.bigrams.table import BigramTable
from based_jax.evals.perplexity.records import Records, make_records, repeat_distances
from based_jax.evals.perplexity.scoring import Scores
from based_jax.evals.perplexity.slices import gap_explained, report

SEED = st.integers(0, 2**32 - 1)


def distance_by_definition(inputs, targets, segments, position) -> int:
    def pair(index):
        return segments[index], inputs[index], targets[index]

    return next(
        (position - before for before in reversed(range(position)) if pair(before) == pair(position)), 0
    )


@given(SEED, st.integers(1, 3), st.sampled_from([1, 2, 30]), st.sampled_from([1, 2, 5, 1 << 17]))
def test_distances_are_those_of_the_definition(seed, rows, length, vocab_size):
    rng = np.random.default_rng(seed)
    inputs, targets = rng.integers(0, vocab_size, (2, rows, length), dtype=np.int32)
    found, one = repeat_distances(inputs, targets), np.zeros(length, int)
    for row in range(rows):
        for position in range(length):
            expected = distance_by_definition(inputs[row], targets[row], one, position)
            assert found[row, position] == expected


def test_counts_are_those_of_the_same_tokenizer():
    records = random_records(0, 20, 5, False, False)
    records = dataclasses.replace(records, info=records.info | {"vocab_size": 5})
    with pytest.raises(ValueError, match="counts = 'a vocabulary of 7': expected the tokenizer's 5"):
        records.with_counts(BigramTable.of_stream(np.arange(5), 7))


def random_records(
    seed: int, size: int, length: int | None, cross: bool, counted: bool, stride: int | None = None
) -> Records:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 4, size, dtype=np.uint16)
    tokens[[0, -1]] = 4
    tokens[rng.integers(0, size, 3)] = 4
    starts = np.flatnonzero(tokens[:-1] == 4)
    loss = rng.exponential(2, size - 1).astype(np.float32)
    scores = Scores(loss, tokens[1:].astype(np.int32), loss)
    info = {"num_bytes": 100}
    records = make_records(PackedTokens(tokens, starts, 100), scores, length, cross, info, stride)
    if not counted:
        return records
    training = np.repeat(rng.integers(0, 4, 60), rng.integers(1, 4, 60))
    return records.with_counts(BigramTable.of_stream(training, 5))


def mean(values) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def close(value, expected) -> bool:
    return value is None if expected is None else math.isclose(value, expected, rel_tol=1e-9)


@given(
    SEED,
    st.sampled_from([4, 60]),
    st.sampled_from([(None, None), (7, None), (7, 3), (7, 7), (8, 1), (100, None), (100, 60)]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 6),
)
def test_the_report_is_that_of_the_definition(seed, size, window, cross, counted, max_count):
    length, stride = window
    records = random_records(seed, size, length, cross, counted, stride)
    rng = np.random.default_rng(seed + 1)
    reference = dataclasses.replace(records, loss=rng.exponential(2, size - 1).astype(np.float32))
    found = report(records, max_count, reference)
    assert json.loads(json.dumps(found)) == found

    document = np.cumsum(records.input == 4)
    segments = np.zeros(size - 1, int) if cross and length else document
    expected, places = [], []
    for index in range(size - 1):
        if length is None:
            sequence = document[index] - 1
            begin = np.flatnonzero(document == document[index])[0]
        else:
            step = stride or length
            sequence = next(number for number in range(size) if index < number * step + length)
            begin = sequence * step
        assert records.sequence[index] == sequence
        row = (values[begin:] for values in (records.input, records.target, segments))
        expected.append(distance_by_definition(*row, index - begin))
        places.append(index - begin)
    assert records.distance.tolist() == expected
    assert records.sequence_positions().tolist() == places
    counts = records.count
    hits = [d > 0 and (counts is None or counts[i] <= max_count) for i, d in enumerate(expected)]

    losses, others = records.loss.astype(float).tolist(), reference.loss.astype(float).tolist()
    chosen = {"all": range(size - 1), "hits": np.flatnonzero(hits), "other": np.flatnonzero(~np.array(hits))}
    for name, positions in chosen.items():
        values = found["slices"][name]
        assert values["tokens"] == len(positions)
        assert close(values["loss"], mean(losses[i] for i in positions))
        assert close(found["reference"]["slices"][name]["loss"], mean(others[i] for i in positions))
        assert values["loss"] is None or close(values["perplexity"], math.exp(values["loss"]))
    assert close(found["bits_per_byte"], sum(losses) / math.log(2) / 100)

    assert bool(found["frequency"]) == counted
    for entry in found["frequency"]:
        inside = [i for i in range(size - 1) if entry["low"] <= counts[i] <= entry["high"]]
        assert close(entry["all"]["loss"], mean(losses[i] for i in inside))
        assert close(entry["repeats"]["loss"], mean(losses[i] for i in inside if expected[i]))
    assert sum(entry["all"]["tokens"] for entry in found["frequency"]) == (size - 1) * counted
    for entry in found["positions"]:
        inside = [i for i in range(size - 1) if entry["low"] <= places[i] <= entry["high"]]
        assert close(entry["all"]["loss"], mean(losses[i] for i in inside))
        assert close(entry["hits"]["loss"], mean(losses[i] for i in inside if hits[i]))
    for name, total in (("all", sum(losses)), ("hits", np.dot(losses, hits))):
        cells = [entry[name] for entry in found["positions"] if entry[name]["tokens"]]
        assert sum(cell["tokens"] for cell in cells) == found["slices"][name]["tokens"]
        assert close(sum(cell["tokens"] * cell["loss"] for cell in cells), total)
    for entry in found["distances"]["bins"]:
        inside = [i for i, d in enumerate(expected) if entry["low"] <= d <= entry["high"]]
        assert (entry["repeats"], entry["hits"]) == (len(inside), sum(hits[i] for i in inside))
    assert sum(entry["hits"] for entry in found["distances"]["bins"]) == sum(hits)


def test_the_gap_explained_is_zoologys_formula():
    # Zoology, Table 1: Hyena 72M against attention 73M with 7.03% hits is 60.8%.
    hits = np.arange(10_000) < 703
    ours = np.where(hits, math.log(9.00), math.log(15.74))
    attention = np.where(hits, math.log(2.41), math.log(14.76))
    assert gap_explained(ours, attention, hits) == pytest.approx(0.608, abs=0.002)
    assert gap_explained(np.where(hits, 2.0, 0.0), np.where(hits, 1.0, 0.5), hits) == 1.0  # better overall
    assert gap_explained(np.where(hits, 2.0, 0.9), np.where(hits, 1.0, 0.9), hits) == 1.0
    assert gap_explained(attention, attention, hits) is None
    assert gap_explained(np.where(hits, 1.0, 2.0), np.where(hits, 2.0, 1.0), hits) < 0


def test_a_reference_on_other_tokens_is_refused():
    records = random_records(0, 60, 7, True, False)
    other = random_records(0, 60, 9, True, False)
    with pytest.raises(ValueError, match="reference"):
        report(records, reference=other)
