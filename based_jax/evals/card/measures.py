"""Measure recall with a `LabelScorer`: MQAR, AR hits, the recall probe. Results are JSON values.

accuracy    share of right answers
stderr      its standard error over the examples
perplexity  exp of the mean loss of the answers
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from based_jax.data.tasks import IGNORE, MQAR, RecallProbe
from based_jax.evals.label_scores import LabelScorer
from based_jax.evals.perplexity.repeats import is_hit, repeat_distances
from based_jax.evals.perplexity.slices import slices
from based_jax.validate import expect

Cell = dict[str, Any]

_SAME = 1e-3
"""Largest change of a causal model's loss (nats) by later tokens, which XLA may sum in another order."""


def is_causal(scorer: LabelScorer) -> bool:
    """Return whether the losses of a row's first half stay the same with another second half."""
    half = scorer.length // 2
    tokens = np.random.default_rng(0).integers(0, scorer.vocab_size, (2, scorer.length), np.int32)
    tokens[1, :half] = tokens[0, :half]
    labels = np.full_like(tokens, IGNORE)
    labels[:, : max(half - 1, 1)] = tokens[0, 1 : max(half, 2)]
    first, second = scorer(tokens, labels).loss.reshape(2, -1)
    return bool(np.allclose(first, second, rtol=_SAME, atol=_SAME))


def mqar(
    scorer: LabelScorer, lengths: Sequence[int], pairs: Sequence[int], examples: int, seed: int
) -> list[Cell]:
    """Score MQAR (with random tokens between the queries) at each length, for all pairs that fit into it."""
    cells = []
    for length in lengths:
        for count in pairs:
            if fits(scorer.vocab_size, length, count):
                segment = MQAR(scorer.vocab_size, examples, length, count).build(seed)
                scores = scorer(segment.inputs, segment.labels)
                by_row = scores.correct.reshape(examples, count).mean(axis=1)
                loss = float(scores.loss.mean(dtype=np.float64))
                found = {
                    "accuracy": float(by_row.mean()),
                    "stderr": float(by_row.std() / math.sqrt(examples)),
                }
                found["perplexity"] = math.exp(min(loss, 700.0))
                cells.append({"length": length, "pairs": count, **found})
    return cells


def fits(vocab_size: int, length: int, pairs: int) -> bool:
    """Return whether rows of this length hold the pairs and their queries, with different keys and values."""
    return 4 * pairs <= length < vocab_size and pairs < vocab_size // 2


def recall_probe(
    scorer: LabelScorer, length: int, pairs: Sequence[int], examples: int, seed: int, filler: int
) -> list[Cell]:
    """Score the recall probe and its filler, for all pairs that fit."""
    cells = []
    for count in pairs:
        # One id, the filler, is no key and no value.
        if fits(scorer.vocab_size, length, count) and count + 1 < scorer.vocab_size // 2:
            found = probe(scorer, RecallProbe(scorer.vocab_size, examples, length, count, filler), seed)
            cells.append({"length": length, "pairs": count, **found})
    return cells


def probe(scorer: LabelScorer, task: RecallProbe, seed: int) -> Cell:
    """Return accuracy and perplexity of the values, and perplexity of the filler (Zoology, appendix G).

    Filler right after a key is not scored, because a model that recalls expects the value there. With
    ``length == 4 * num_pairs`` there is no other filler, and its perplexity is None.
    """
    segment = task.build(seed)
    inputs, answers = np.asarray(segment.inputs), np.asarray(segment.labels)
    following = np.concatenate([inputs[:, 1:], np.full_like(inputs[:, :1], IGNORE)], axis=1)
    is_filler = (answers == IGNORE) & (following == task.filler)
    scores = scorer(inputs, np.where(is_filler, following, answers))
    is_value = answers[scores.row, scores.position] != IGNORE
    losses = (
        float(scores.loss[mask].mean(dtype=np.float64)) if mask.any() else None
        for mask in (is_value, ~is_value)
    )
    perplexity, filler_perplexity = (None if loss is None else math.exp(min(loss, 700.0)) for loss in losses)
    accuracy = float(scores.correct[is_value].mean())
    return {"accuracy": accuracy, "perplexity": perplexity, "filler_perplexity": filler_perplexity}


def text_rows(tokens: Int[np.ndarray, " T"], length: int) -> Int[np.ndarray, "n N"]:
    """Cut a text into windows of `length` inputs and their targets, without the tokens after the last one.

    Documents in a window see each other, as in the authors' evaluation.
    """
    expect(len(tokens) > length, "text", f"{len(tokens)} tokens", f"more than length = {length}")
    return np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.int32), length + 1)[::length]


def stream_rows(vocab_size: int, length: int, pairs: int, examples: int, seed: int) -> Int[np.ndarray, "n N"]:
    """Draw rows of MQAR with each answer at the position after its query, which a slot reserves."""
    segment = MQAR(vocab_size, examples, length, pairs).build(seed)
    rows, labels = np.array(segment.inputs), np.asarray(segment.labels)
    row, position = np.nonzero(labels != IGNORE)
    rows[row, position + 1] = labels[row, position]
    return rows


def hits(scorer: LabelScorer, rows: Int[np.ndarray, "n N"]) -> dict[str, Any]:
    """Compare AR hits, all repeated bigrams of a row, with the other tokens of the rows."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    is_repeat = is_hit(repeat_distances(inputs, targets).ravel(), None)
    found = slices(scorer(inputs, targets).loss, is_repeat)
    recalled, other = found["hits"]["loss"], found["other"]["loss"]
    return {**found, "gap": None if recalled is None or other is None else other - recalled}
