"""The other tasks: what each promises about its rows, and the example rows of docs/recall.md."""

import re
from collections import Counter

import jax
import numpy as np
import pytest

from based_jax.data import tasks
from based_jax.data.tasks import (
    IGNORE,
    Compositional,
    CumulativeMajority,
    CumulativeParity,
    Forgetting,
    Majority,
    Parity,
    RecallProbe,
    SingleQuery,
    StackedMQAR,
    VocabMajority,
)
from tests.data.induction_head import accuracy, induction_head
from tests.data.test_tasks_mad import GUIDE, LAWS, example


def arrays(task, seed=0):
    segment = task.build(seed)
    return np.asarray(segment.inputs), np.asarray(segment.labels)


@pytest.mark.release
def test_compositional():
    inputs, labels = arrays(Compositional(28, length=26, random_fill=False))
    first, second, values = np.moveaxis(inputs[:, :12].reshape(1000, 4, 3), 2, 0)
    for tokens, low, high, different in ((first, 1, 9, 2), (second, 9, 18, 2), (values, 18, 28, 4)):
        assert low <= tokens.min()
        assert tokens.max() < high
        assert all(len(set(row)) == different for row in tokens.tolist())
    assert all(len(set(zip(*row, strict=True))) == 4 for row in zip(first, second, strict=True))
    rows, positions = (labels != IGNORE).nonzero()
    assert np.array_equal(np.bincount(rows), np.full(1000, 4))
    assert ((positions - 12) % 3 == 1).all()
    # A head that matches both tokens finds every value; neither token alone is enough.
    assert accuracy(induction_head(inputs, order=2), labels) == 1.0
    assert accuracy(induction_head(inputs, order=1), labels) < 0.7


def test_forgetting():
    task = Forgetting(22, length=18, num_pairs=3, num_updates=1, random_fill=False)
    assert task.slices == {"num_pairs": 3, "num_updates": 1, "length": 18}
    inputs, labels = arrays(task)
    for row, answers in zip(inputs, labels, strict=True):
        context = row[:8].reshape(4, 2).tolist()
        assert len({value for _, value in context}) == 4
        assert len({key for key, _ in context[:3]}) == len({key for key, _ in context}) == 3
        positions = np.flatnonzero(answers != IGNORE)
        assert (positions % 2 == 0).all()
        assert positions.min() >= 8
        assert dict(context) == dict(zip(row[positions].tolist(), answers[positions].tolist(), strict=True))
    # The last match is right; the first one is, where there was no update.
    assert accuracy(induction_head(inputs, latest=True), labels) == 1.0
    assert accuracy(induction_head(inputs), labels) == pytest.approx(2 / 3)


def test_single_query():
    inputs, labels = arrays(SingleQuery(12, length=12, num_pairs=3))
    keys, values = inputs[:, :10:2], inputs[:, 1:10:2]
    assert set(np.unique(keys)) == set(range(5))
    assert set(np.unique(values)) <= set(range(5, 10))
    assert (inputs[:, 10] == 11).all()
    assert (labels[:, :-1] == IGNORE).all()
    for row in range(1000):
        dictionary = dict(zip(keys[row].tolist(), values[row].tolist(), strict=True))
        assert all(dictionary[key] == value for key, value in zip(keys[row], values[row], strict=True))
        assert dictionary[inputs[row, -1]] == labels[row, -1]
    assert accuracy(induction_head(inputs, filler=None), labels) == 1.0


def test_recall_probe():
    inputs, labels = arrays(RecallProbe(18, length=16, num_pairs=2, filler=9))
    keys, values = inputs[:, :4:2], inputs[:, 1:4:2]
    assert set(np.unique(keys)) == set(range(9))
    assert set(np.unique(values)) == set(range(10, 18))
    rest = inputs[:, 4:]
    assert (rest[labels[:, 4:] == IGNORE] == 9).all()
    assert ((labels != IGNORE).sum(axis=1) == 2).all()
    assert accuracy(induction_head(inputs, filler=9), labels) == 1.0


@pytest.mark.release
def test_stacked():
    task = StackedMQAR(100, 30, 6, num_passes=2, embedding_dim=48)
    inputs, labels = arrays(task, 3)
    assert inputs.shape == (30, 18, 96)
    assert labels.shape == (30, 18)
    table = np.asarray(task.embeddings())
    np.testing.assert_allclose(np.linalg.norm(table, axis=1), 1, atol=1e-6)
    first, second = np.split(inputs, 2, axis=2)
    assert not second[:, 12:].any()
    assert ((labels != IGNORE) == (np.arange(18) >= 12)).all()
    keys = (first @ table[:50].T).argmax(axis=2)
    np.testing.assert_allclose(table[keys], first, atol=1e-6)
    for part in (slice(0, 6), slice(6, 12), slice(12, 18)):  # a new order each time, of the same keys
        assert np.array_equal(np.sort(keys[:, part]), np.sort(keys[:, :6]))
    assert (keys[:, :6] != keys[:, 6:12]).any()
    # One layer of attention, and the nearest row of the upper half, which is the label's table.
    scores = 100 * first[:, 12:] @ first[:, :12].swapaxes(1, 2)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    found = (weights @ second[:, :12] @ table[50:].T).argmax(axis=2)
    assert accuracy(found, labels[:, 12:]) == 1.0


@pytest.mark.release
def test_circuits():
    """The golden rows of the authors' generators, and all rows against plain sums."""
    for task, count in ((Parity, 8), (Majority, 8), (CumulativeParity, 9), (CumulativeMajority, 9)):
        inputs, labels = arrays(task(length=9))
        bits = inputs[:, :count]
        assert set(np.unique(bits)) == {0, 1}
        if count == 8:
            assert (inputs[:, 8] == 2).all()
            assert (labels[:, :8] == IGNORE).all()
            labels = labels[:, 8:]
        assert labels.tolist() == [CIRCUITS[task](row.tolist()) for row in bits]
        shortest, _ = jax.eval_shape(task(2, 1).draw, jax.random.key(0))
        assert shortest.shape == (2, 1)
    golden = [0, 1, 1, 0, 1, 1, 1]
    assert CIRCUITS[Majority](golden) == [1]
    assert CIRCUITS[CumulativeParity](golden) == [0, 1, 0, 0, 1, 0, 1]
    assert CIRCUITS[CumulativeMajority]([*golden, 1]) == [0, 1, 1, 1, 1, 1, 1, 1]


def _prefixes(bits):
    return [bits[:end] for end in range(1, len(bits) + 1)]


CIRCUITS = {
    Parity: lambda bits: [sum(bits) % 2],
    Majority: lambda bits: [int(sum(bits) / len(bits) > 0.5)],
    CumulativeParity: lambda bits: [sum(prefix) % 2 for prefix in _prefixes(bits)],
    CumulativeMajority: lambda bits: [int(2 * sum(prefix) >= len(prefix)) for prefix in _prefixes(bits)],
}


@pytest.mark.release
def test_vocabulary_majority():
    inputs, labels = arrays(VocabMajority(5, length=9))
    assert (labels[:, :-1] == IGNORE).all()
    assert (inputs[:, -1] == 0).all()
    assert set(np.unique(inputs[:, :-1])) == set(range(1, 5))
    for row, label in zip(inputs[:, :-1].tolist(), labels[:, -1].tolist(), strict=True):
        (most, count), (_, next_count) = Counter(row).most_common(2)
        assert (most, True) == (label, count > next_count)
    shortest, answer = jax.jit(VocabMajority(3, 2, 2).draw)(jax.random.key(0))
    assert shortest[:, 0].tolist() == answer[:, 1].tolist()


REFUSED = {
    "Compositional(num_pairs=5)": "num_pairs = 5: expected a square number",
    "Compositional(num_pairs=16)": "length = 64: expected at least 6 * num_pairs = 96",
    "Forgetting(num_updates=9)": "num_updates = 9: expected at most num_pairs = 8",
    "Forgetting(length=38)": "length = 38: expected at least 4 * num_pairs + 2 * num_updates = 40",
    "SingleQuery(num_pairs=20)": "num_pairs = 20: expected at most (vocab_size - 1) // 2 = 19",
    "SingleQuery(length=7)": "length = 7: expected an even number, at least 4",
    "RecallProbe(num_pairs=257)": "length = 1024: expected at least 4 * num_pairs = 1028",
    "RecallProbe(filler=-1)": "filler = -1: expected an integer, from 0 to 31999",
    "StackedMQAR(vocab_size=9)": "vocab_size = 9: expected an even number",
    "StackedMQAR(vocab_size=10, num_pairs=6)": "num_pairs = 6: expected at most vocab_size / 2 = 5",
    "Parity(length=0)": "length = 0: expected an integer, at least 1",
    "VocabMajority(vocab_size=2)": "vocab_size = 2: expected at least 3, END and two symbols",
    "VocabMajority(length=1)": "length = 1: expected at least 2, a symbol and END",
    "InContextRecall(length=7)": "length = 7: expected an even number",
    "InContextRecall(noise_vocab_size=15)": "noise_vocab_size = 15: expected 0 to vocab_size - 2 = 14",
    "NoisyInContextRecall(frac_noise=1)": "frac_noise = 1: expected at least 0 and below 1",
    "FuzzyInContextRecall(length=11)": "length = 11: expected at least 2 (key_motif + value_motif) = 12",
    "FuzzyInContextRecall(value_motif=4)": "value_motif = 4: expected at most 3",
    "SelectiveCopying(length=32)": "length = 32: expected at least 2 num_copied + 1 = 33",
    "Compression(vocab_size=1)": "vocab_size = 1: expected at least 2",
    "JointRecall(num_keys=0)": "num_keys = 0: expected an integer, at least 1",
    "Permutations(degree=7)": "degree = 7: expected from 2 to 6",
    "MQAR(length=10, num_pairs=4)": "length = 10: expected at least 4 * num_pairs = 16",
    "MQAR(num_passes=3, num_pairs=9)": "length = 64: expected at least 8 * num_pairs = 72",
    "MQAR(length=63)": "length = 63: expected an even number",
    "MQAR(vocab_size=64)": "vocab_size = 64: expected more than length = 64",
    "MQAR(power=0)": "power = 0: expected a finite number above 0",
    "MQAR(power=float('nan'))": "power = nan: expected a finite number above 0",
    "MQAR(num_examples=0)": "num_examples = 0: expected an integer, at least 1",
    "MQAR(num_pairs=4.0)": "num_pairs = 4.0: expected an integer, at least 1",
}


def test_refused_settings():
    for constructor, message in REFUSED.items():
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            eval(constructor, vars(tasks))


@pytest.mark.release
def test_example_rows_of_the_guide():
    """Every row of the table is what its settings give with seed 0; those in `LAWS` are checked there."""
    assert len(GUIDE) >= 9
    for settings in GUIDE.keys() - LAWS.keys():
        assert example(eval(settings, vars(tasks))) == GUIDE[settings]
