"""Labelled sequences: the layout on disk, rows of one length, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import NucleotideTokenizer
from based_jax.data.labelled import LabelledRows, LabelledSequences, load_labelled

DNA = NucleotideTokenizer()
TRAIN = [("ACGT", "negative"), ("ggN", "negative"), ("T", "positive")]
TEST = [("GT", "negative"), ("AC", "positive")]


def write(root, train, test):
    for part, examples in (("train", train), ("test", test)):
        for number, (sequence, label) in enumerate(examples):
            path = root / part / label / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f" {sequence}\n")


def texts(part: LabelledSequences) -> list[tuple[str, str]]:
    pairs = zip(part.tokens, part.labels, strict=True)
    return [(DNA.decode(ids), part.classes[label]) for ids, label in pairs]


def test_a_directory_of_classes(tmp_path):
    write(tmp_path, TRAIN, TEST)
    train, test = load_labelled(tmp_path, DNA)
    assert train.classes == test.classes == ("negative", "positive")
    assert texts(train) == [(sequence.upper(), label) for sequence, label in TRAIN]
    assert texts(test) == TEST
    assert (len(train), train.longest) == (3, 4)
    assert {ids.dtype for ids in train.tokens} == {np.dtype("uint8")}
    assert train.checksum != test.checksum


def sequences(lengths) -> LabelledSequences:
    starts = np.cumsum([0, *lengths])
    tokens = np.split(np.arange(starts[-1]).astype(np.uint16), starts[1:-1])
    return LabelledSequences(tokens, np.arange(len(lengths), dtype=np.int32) % 2, ("a", "b"))


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    length=st.integers(1, 9),
    size=st.integers(1, 5),
)
def test_rows_hold_every_sequence_once(lengths, length, size):
    part = sequences(lengths)
    rows = LabelledRows(part, length)
    batches = list(rows.in_order(size))
    assert {batch["inputs"].shape for batch in batches} == {(size, length)}
    batch = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert batch["mask"].sum() == len(lengths) == len(rows)
    assert rows.padded == ("input_mask" in batch) == (min(lengths) < length)
    for index, tokens in enumerate(part.tokens):
        real = min(len(tokens), length)
        np.testing.assert_array_equal(batch["inputs"][index, :real], tokens[:real])
        assert not batch["inputs"][index, real:].any()
        if rows.padded:
            np.testing.assert_array_equal(batch["input_mask"][index], np.arange(length) < real)
        assert batch["targets"][index] == part.labels[index]


def test_a_random_share_is_held_out():
    part = sequences(range(1, 41))
    train, validation = part.split(0.25, seed=1)
    assert (len(train), len(validation)) == (30, 10)
    lengths = [len(tokens) for side in (train, validation) for tokens in side.tokens]
    assert sorted(lengths) == list(range(1, 41)), "every sequence is on one side"
    assert part.split(0.25, seed=1)[1].checksum == validation.checksum != part.split(0.25, seed=2)[1].checksum
    with pytest.raises(ValueError, match=r"share = 0\.001: expected one that leaves both parts some of 40"):
        part.split(0.001, seed=1)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (TRAIN[:2], TEST, "at least two classes; the training part has"),
        (TRAIN, [("A", "other")], "0.txt: label = 'other': expected one of the training"),
        ([*TRAIN, ("AXA", "negative")], TEST, "3.txt: character 1 of a sequence = 'X'"),
        ([*TRAIN, ("", "negative")], TEST, "3.txt: sequence = '': expected at least one"),
        ([], TEST, "it has no train part"),
        (TRAIN, [], "it has no test part"),
    ],
)
def test_bad_examples_are_named(tmp_path, train, test, message):
    write(tmp_path, train, test)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_labelled(tmp_path, DNA)
