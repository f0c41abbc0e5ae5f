"""The authors' MQAR data: their rows and ours have the same structure, and their slots the same law."""

import numpy as np
from scipy import stats

from based_jax.data.tasks import IGNORE, MQAR
from based_jax.data.tasks.sampling import power_law
from tests.parity.cases import Fixture

SIGNIFICANCE = 1e-4
"""Probability of calling equal laws different."""


def check_task(fixture: Fixture) -> None:
    """Compare everything that the fixture holds. Their random stream is not ours, so not row by row."""
    meta = fixture.meta
    pairs, vocab_size = meta["num_kv_pairs"], meta["vocab_size"]
    for suffix in ("", "_nofill"):
        inputs, labels = (fixture.arrays[f"out:{name}{suffix}"] for name in ("inputs", "labels"))
        check_structure(inputs, labels, vocab_size, pairs, random_fill=not suffix)
        fixture.errors |= {f"inputs{suffix}": 0.0, f"labels{suffix}": 0.0}

    examples, length, power = (meta[name] for name in ("hist_examples", "input_seq_len", "power_a"))
    task = MQAR(vocab_size, examples, length, pairs, power, random_fill=False)
    ours = task.build(meta["seed"])
    assert ours.inputs.shape[1:] == inputs.shape[1:]
    check_structure(np.asarray(ours.inputs), np.asarray(ours.labels), vocab_size, pairs, random_fill=False)

    weights = power_law((task.length - 2 * pairs) // 2, task.power)
    fixture.compare("slot_prob_one_draw", weights / weights.sum(), tolerance=1e-8)
    counts = np.asarray(ours.labels != IGNORE).sum(axis=0)
    theirs = fixture.arrays["out:label_position_counts"]
    assert counts.sum() == theirs.sum()
    occupied = (counts + theirs) > 0
    assert not occupied[: 2 * pairs].any()
    assert not occupied[1::2].any()
    # Pearson's test takes a row's slots as independent. They exclude each other, which only lowers the sum.
    chance = stats.chi2_contingency(np.stack([counts, theirs])[:, occupied]).pvalue
    assert chance > SIGNIFICANCE, f"positions of the same law differ like this with probability {chance}"
    fixture.errors["label_position_counts"] = SIGNIFICANCE / chance


def check_structure(
    inputs: np.ndarray,
    labels: np.ndarray,
    vocab_size: int,
    num_pairs: int,
    *,
    num_passes: int = 1,
    random_fill: bool = True,
) -> None:
    """What holds for every row of MQAR: the context, one query per key, and its value there as the label."""
    n, length = inputs.shape
    size = 2 * num_pairs * num_passes
    passes = inputs[:, :size].reshape(n, num_passes, num_pairs, 2)
    keys, values = passes[:, 0, :, 0], passes[:, 0, :, 1]
    assert np.array_equal(passes, np.broadcast_to(passes[:, :1], passes.shape)), "passes differ"
    for tokens, low, high in ((keys, 1, vocab_size // 2), (values, vocab_size // 2, vocab_size)):
        assert low <= tokens.min()
        assert tokens.max() < high
        assert (np.diff(np.sort(tokens, axis=1)) > 0).all(), "a row has a token twice"
    labelled = labels != IGNORE
    assert (labelled.sum(axis=1) == num_pairs).all(), "not one label per pair"
    positions = labelled.nonzero()[1]
    assert positions.min() >= size
    assert (positions % 2 == 0).all()
    asked, answers = (array[labelled].reshape(n, num_pairs) for array in (inputs, labels))
    dictionary, queries = np.argsort(keys, axis=1), np.argsort(asked, axis=1)
    for ours, theirs in ((keys, asked), (values, answers)):
        in_context = np.take_along_axis(ours, dictionary, axis=1)
        assert np.array_equal(in_context, np.take_along_axis(theirs, queries, axis=1))
    fill = inputs[:, size:][~labelled[:, size:]]
    if random_fill:
        assert fill.min() >= 0
        assert fill.max() < vocab_size
        assert fill.any() or length == 2 * size
    else:
        assert not fill.any()
