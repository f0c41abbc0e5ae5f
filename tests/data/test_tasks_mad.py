"""MAD's tasks, joint recall and permutations: labels against plain definitions, and shares of the draws."""

import functools
import itertools
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import based_jax as bj
from based_jax.data import tasks
from based_jax.data.tasks import IGNORE
from based_jax.models import mqar_backbone
from based_jax.models.classifier import AutoEncoder
from based_jax.training.commands import synthetic
from based_jax.training.mqar import sweep
from tests.arrays import normals
from tests.marks import slow_but


def recall(task, row):
    """The value of each key that came before; ids of the noise are above those of keys and values."""
    known, labels = {}, [IGNORE] * len(row)
    for index in range(0, len(row), 2):
        key, value = row[index : index + 2]
        if key < task.vocab_size - task.noise_vocab_size:
            assert key < (task.vocab_size - task.noise_vocab_size) // 2 <= value
            assert known.setdefault(key, (value, index))[0] == value
            labels[index] = value if known[key][1] < index else IGNORE
    assert labels[-2] != IGNORE
    return labels


def fuzzy(task, row):
    """Keys end where values begin; a key that came before has its value, each token labelled one earlier."""
    half, known, labels = (task.vocab_size - 1) // 2, {}, [IGNORE] * len(row)
    start = next(index for index, token in enumerate(row) if token != task.vocab_size - 1)
    parts = [[*group] for _, group in itertools.groupby(row[start:], key=lambda token: token < half)]
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        assert len(set(key)) == len(key) <= task.key_motif
        assert len(set(value)) == len(value) <= task.value_motif
        start += len(key)
        if tuple(key) in known:
            labels[start - 1 : start - 1 + len(value)] = value
        assert known.setdefault(tuple(key), value) == value
        start += len(value)
    assert labels[-2] != IGNORE
    return labels


def copying(task, row):
    end = row.index(task.vocab_size - 1)
    tokens = [token for token in row[:end] if token != task.vocab_size - 2]
    assert row[end + 1 :] == [task.vocab_size - 2] * task.num_copied
    return [IGNORE] * (end + 1) + tokens


def joint(task, row):
    table, labels, context, first = {}, [IGNORE] * len(row), None, 2 + task.num_values
    for index, token in enumerate(row):
        if token >= first + task.num_keys:
            context = token
        elif token >= first:
            value = table.setdefault((context, token), row[index + 1])
            assert 2 <= value == row[index + 1] < first
            labels[index] = value if index >= len(row) // 2 else IGNORE
    assert (row[0], row[len(row) // 2]) == (0, 1)
    assert len(table) == task.num_contexts * task.num_keys == len(row) - labels.count(IGNORE)
    return labels


def permuted(task, row):
    elements, product, labels = [*itertools.permutations(range(task.degree))], range(task.degree), []
    for token in row:
        product = tuple(elements[token][item] for item in product)
        labels.append(elements.index(product))
    return labels


@functools.cache
def mapping_of(task):
    return np.asarray(task.mapping()).tolist()


def memory(task, row):
    assert row[1::2] == [task.vocab_size - 1] * (len(row) // 2)
    mapping = mapping_of(task)
    assert len(set(mapping)) == (task.vocab_size - 1) // 2 <= min(mapping)
    return [token for key in row[::2] for token in (IGNORE, mapping[key])]


PAGE = Path(__file__).parents[2] / "docs" / "recall.md"
GUIDE = dict(re.findall(r"^\| `(\w+\(.*?\))` \| `([^`]*)` \|", PAGE.read_text(encoding="utf-8"), flags=re.M))
"""The example rows of the guide: settings -> the first row that they draw with seed 0"""


def example(task) -> str:
    segment = task.build(0)
    first = zip(np.asarray(segment.inputs)[0], np.asarray(segment.labels)[0], strict=True)
    return " ".join(f"{token}" if label == IGNORE else f"{token}→{label}" for token, label in first)


LAWS = {
    "InContextRecall(8, length=12)": recall,
    "NoisyInContextRecall(12, length=16, noise_vocab_size=4)": recall,
    "FuzzyInContextRecall(10, length=16, key_motif=2, value_motif=2)": fuzzy,
    "SelectiveCopying(6, length=12, num_copied=3)": copying,
    "Compression(5, length=6)": lambda task, row: [*row[:-1], IGNORE],
    "Memorization(9, length=8)": memory,
    "JointRecall(num_contexts=2, num_keys=2, num_values=3)": joint,
    "Permutations(length=8, degree=3)": permuted,
}
MORE = {
    "NoisyInContextRecall(14, 1000, 24, 6, 0.5)": recall,
    "FuzzyInContextRecall(10, 1000, 30)": fuzzy,
    "FuzzyInContextRecall(6, 1000, 12, 2, 1)": fuzzy,
    "JointRecall(1000, 3, 2, 4)": joint,
    "Permutations(1000, 9, 4)": permuted,
}


@pytest.mark.parametrize("settings", slow_but(LAWS, LAWS | MORE, core=list(LAWS)[::3]))
def test_labels_follow_from_the_definition(settings):
    task, labels_of = eval(settings, vars(tasks)), (LAWS | MORE)[settings]
    segment = task.build(5)
    inputs, labels = np.asarray(segment.inputs), np.asarray(segment.labels)
    assert inputs.shape == labels.shape == (1000, task.length)
    assert (inputs.min(), inputs.max()) == (0, task.vocab_size - 1)
    for row, expected in zip(inputs.tolist(), labels.tolist(), strict=True):
        assert labels_of(task, row) == expected
    assert not np.array_equal(inputs, task.build(6).inputs)
    assert settings in MORE or example(task) == GUIDE[settings]
    with jax.enable_x64(True):  # may change neither the dtypes nor what is drawn
        drawing = jax.make_jaxpr(task.draw)(jax.random.key(0))
    assert [x.dtype for x in drawing.out_avals] == [np.int32, np.int32]
    assert not re.search(r"\b[fu]64\[", str(drawing))


@pytest.mark.slow
def test_shares():
    """Noise, sizes of keys and products are as frequent as the definitions say, to 5 standard deviations."""
    inputs = np.asarray(tasks.NoisyInContextRecall(12, length=16, noise_vocab_size=4).build(1).inputs)
    noisy = (inputs >= 8)[:, ::2]
    assert not noisy[:, -1].any()
    assert abs(noisy[:, :-1].mean() - 0.2 * 6 / 7) < 5 * 0.4 / np.sqrt(1000 * 7)
    rows = np.asarray(tasks.FuzzyInContextRecall(num_examples=500).build(0).inputs).tolist()
    runs = (itertools.groupby(row, lambda token: token < 7) for row in rows)
    sizes = [len([*group]) for groups in runs for is_key, group in groups if is_key]
    assert np.allclose(np.bincount(sizes)[1:] / len(sizes), 1 / 3, atol=5 * 0.5 / np.sqrt(len(sizes)) + 0.01)
    products = np.asarray(tasks.Permutations(length=8, degree=3).build(0).labels)
    assert np.allclose(np.bincount(products[:, -1]) / 1000, 1 / 6, atol=5 * 0.4 / np.sqrt(1000))


@pytest.mark.release
def test_compression_is_decoded_from_the_last_output(tmp_path, monkeypatch):
    """The outputs differ by their position only, and the trainer of the task takes this model."""
    config = mqar_backbone(None, 8, vocab_size=5, layers=["short_conv"], mlp="none")
    model, tokens = AutoEncoder(config), np.array([[0, 1, 2, 3, 4], [1, 0, 2, 3, 4]])
    params = normals(model.init, tokens)

    @jax.jit
    def outputs(params):
        hidden, _ = model.apply(params, tokens, method="hidden")
        encoder = {"params": params["params"]["backbone"]}
        expected = bj.LanguageModel(config).apply(encoder, hidden, method="unembed")
        return hidden, expected, model.apply(params, tokens)[0]

    hidden, expected, logits = map(np.asarray, outputs(params))
    assert hidden.shape == (2, 5, 8)
    # A convolution of 4 tokens at the last one does not see the first: nothing else leads to the outputs.
    np.testing.assert_allclose(hidden[0], hidden[1], atol=1e-6)
    assert np.abs(np.diff(hidden[0], axis=0)).max(axis=1).min() > 1e-3
    np.testing.assert_allclose(logits, expected, rtol=1e-6)
    models = []
    monkeypatch.setattr(sweep, "Grid", lambda model, *settings: models.append(model))
    flags = {"task": "compression", "examples": 4, "test_examples": 4, "length": 4, "d_model": 8}
    with pytest.raises(AttributeError):
        synthetic.train_synthetic(synthetic.SyntheticConfig(mixer="short_conv", workdir=tmp_path, **flags))
    assert isinstance(models[0], AutoEncoder)
