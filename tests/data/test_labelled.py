"""Labelled sequences: the layouts on disk, rows of one length, and what is refused."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import ByteTokenizer, NucleotideTokenizer
from based_jax.data.labelled import LabelledRows, LabelledSequences, load_labelled

DNA = NucleotideTokenizer()
TRAIN = [("ACGT", "negative"), ("ggN", "negative"), ("T", "positive")]
TEST = [("AC", "positive"), ("GT", "negative")]


def write_folders(root, parts):
    for part, examples in parts.items():
        for number, (sequence, label) in enumerate(examples):
            path = root / part / label / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f" {sequence}\n")


def write_csv(root, parts):
    for part, examples in parts.items():
        lines = ["label,extra,sequence", *(f'{label},"a,b",{sequence}' for sequence, label in examples)]
        (root / f"{part}.csv").write_text("\r\n".join(lines) + "\r\n")


def texts(part: LabelledSequences) -> list[tuple[str, str]]:
    documents = [part.tokens[start:end] for start, end in zip(part.starts, part.starts[1:], strict=False)]
    return [(DNA.decode(ids), part.classes[label]) for ids, label in zip(documents, part.labels, strict=True)]


@pytest.mark.parametrize("write", [write_folders, write_csv])
def test_every_layout_gives_the_same(tmp_path, write):
    write(tmp_path, {"train": TRAIN, "test": TEST})
    train, test = load_labelled(tmp_path, DNA)
    assert train.classes == test.classes == ("negative", "positive")
    assert texts(train) == [(sequence.upper(), label) for sequence, label in TRAIN]
    # Folders come in the order of their classes, tables as they are.
    expected = sorted(TEST, key=lambda row: row[1]) if write is write_folders else TEST
    assert texts(test) == expected
    assert (len(train), train.longest) == (3, 4)
    assert train.tokens.dtype == np.uint8
    assert train.checksum != test.checksum


def test_tables_are_read_as_they_were_written(tmp_path):
    own = ["first\nsecond", "a\r\nb\rc", "a\u2028b\u2029c", "a\x85b\x0cc\x1cd", '"quoted", with a comma']
    rows = [*own, "A" * 200_000]  # beyond the csv module's default limit of a field
    before = csv.field_size_limit()
    for part in ("train", "test"):
        with open(tmp_path / f"{part}.csv", "w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file).writerows([("sequence", "label"), *zip(rows, range(len(rows)), strict=True)])
    train, _ = load_labelled(tmp_path, ByteTokenizer())
    found = [train.tokens[a:b] for a, b in zip(train.starts, train.starts[1:], strict=False)]
    assert [ByteTokenizer().decode(ids) for ids in found] == rows
    assert csv.field_size_limit() == before


def test_numbers_are_ordered_as_numbers(tmp_path):
    rows = [("A", 10), ("C", 9), ("G", 0)]
    write_csv(tmp_path, {"train": rows, "test": rows})
    assert load_labelled(tmp_path, DNA)[0].classes == ("0", "9", "10")


def sequences(lengths) -> LabelledSequences:
    starts = np.cumsum([0, *lengths])
    tokens = np.arange(starts[-1]).astype(np.uint16)
    return LabelledSequences(tokens, starts, np.arange(len(lengths), dtype=np.int32) % 2, ("a", "b"))


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
    for index, (start, own) in enumerate(zip(part.starts, lengths, strict=False)):
        real = min(own, length)
        np.testing.assert_array_equal(batch["inputs"][index, :real], np.arange(start, start + real))
        assert not batch["inputs"][index, real:].any()
        if rows.padded:
            np.testing.assert_array_equal(batch["input_mask"][index], np.arange(length) < real)
        assert batch["targets"][index] == part.labels[index]


def test_a_random_share_is_held_out():
    part = sequences(range(1, 41))
    train, validation = part.split(0.25, seed=1)
    assert (len(train), len(validation)) == (30, 10)
    firsts = [int(size) for side in (train, validation) for size in np.diff(side.starts)]
    assert sorted(firsts) == list(range(1, 41)), "every sequence is on one side"
    assert part.split(0.25, seed=1)[1].checksum == validation.checksum != part.split(0.25, seed=2)[1].checksum
    with pytest.raises(ValueError, match=r"validation = 0\.001: expected a share that leaves both parts"):
        part.split(0.001, seed=1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": TRAIN[:2], "test": TEST}, "at least two classes; the training part has"),
        ({"train": TRAIN, "test": [("A", "other")]}, "0.txt: label = 'other': expected one of the training"),
        ({"train": [*TRAIN, ("AXA", "negative")], "test": TEST}, "character 1 of a sequence = 'X'"),
        ({"train": [*TRAIN, ("", "negative")], "test": TEST}, "3.txt: sequence = '': expected at least one"),
    ],
)
def test_bad_examples_are_named(tmp_path, parts, message):
    write_folders(tmp_path, parts)
    with pytest.raises(ValueError, match=message):
        load_labelled(tmp_path, DNA)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.csv", "sequence,class\nA,b\n", "train.csv, line 2 = .*expected a string 'sequence'"),
        ("train.csv", 'sequence,label\nA,1\n"C,1\nG,1\n', "train.csv, line 3: expected CSV"),
        ("train.csv", "\n", "its train part is empty"),
    ],
)
def test_broken_tables_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_labelled(tmp_path, DNA)


def test_nothing_there_is_an_error(tmp_path):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="there is no train part"):
            load_labelled(directory, DNA)
