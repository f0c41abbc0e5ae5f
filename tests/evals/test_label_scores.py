"""Labels scored with any callable: values by hand, one shape per scorer, errors that name what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.data.tasks import IGNORE
from based_jax.evals.label_scores import LabelScorer

VOCAB, PADDED, LENGTH = 7, 8, 6
TABLE = np.random.default_rng(0).normal(size=(VOCAB, PADDED)).astype(np.float32)
TABLE[:, VOCAB] = 5.0  # the most likely "token" is padding of the vocabulary
TOKENS = np.random.default_rng(1).integers(0, VOCAB, (5, LENGTH), np.int32)
LABELS = np.where(np.arange(LENGTH) % 2, TOKENS[:, ::-1], IGNORE).astype(np.int32)
LABELS[3] = IGNORE


def traced(tokens):
    return jnp.asarray(TABLE)[tokens]


def on_host(tokens):
    return TABLE[np.asarray(tokens)]


@pytest.mark.parametrize("apply_fn", [jax.jit(traced), on_host])
def test_losses_and_correctness_are_those_of_the_logits(apply_fn):
    shapes = set()

    def counted(tokens):
        shapes.add(tokens.shape)
        return apply_fn(tokens)

    scorer = LabelScorer(counted, LENGTH, VOCAB, batch_size=2)
    for width in (LENGTH, LENGTH - 2):
        scores = scorer(TOKENS[:, :width], LABELS[:, :width])
        rows, positions = np.nonzero(LABELS[:, :width] != IGNORE)
        np.testing.assert_array_equal(scores.row, rows)
        np.testing.assert_array_equal(scores.position, positions)
        logits, label = TABLE[TOKENS[rows, positions]], LABELS[rows, positions]
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(label)), label]
        np.testing.assert_allclose(scores.loss, losses, rtol=1e-6)
        np.testing.assert_array_equal(scores.correct, logits[:, :VOCAB].argmax(axis=1) == label)
        assert 0 < scores.correct.sum() < len(label)
    assert shapes == {(2, LENGTH)}


@pytest.mark.parametrize(
    ("apply_fn", "tokens", "labels", "message"),
    [
        *(
            (apply_fn, TOKENS, LABELS, message)
            for apply_fn, message in [
                (
                    lambda tokens: (traced(tokens), None),
                    "apply_fn returned tuple: expected an array of",
                ),
                (lambda tokens: traced(tokens)[:, -1], r"logits has shape \(2, 8\): expected \(2, 6, vocab"),
                (lambda tokens: traced(tokens).astype(jnp.int32), "logits has dtype int32: expected a float"),
                (lambda tokens: traced(tokens)[..., :5], "vocab_size = 7: expected at most 5, the model's"),
                (lambda tokens: traced(tokens) * jnp.nan, "logits = .*row 0, position 1.*: expected finite"),
                (3, "apply_fn = 'int': expected a function"),
            ]
        ),
        (on_host, TOKENS.astype(np.int64) + 2**32, LABELS, "tokens = 'from 4294967296"),
        (on_host, TOKENS + 3, LABELS, "tokens = 'from 3 to 9': expected values from 0 to 6, below vocab"),
        (on_host, TOKENS, np.where(LABELS < 0, LABELS, 7), "labels = 'from 7 to 7'"),
        (on_host, TOKENS, LABELS[:, 1:], r"labels has shape \(5, 5\): expected \(5, 6\)"),
        (on_host, TOKENS.astype(np.float32), LABELS, "tokens has dtype float32: expected an integer dtype"),
        (on_host, np.tile(TOKENS, 2), np.tile(LABELS, 2), "tokens = '12 per row': expected at most 6"),
        (on_host, TOKENS, np.full_like(LABELS, IGNORE), "labels = 'all IGNORE': expected at least one label"),
    ],
)
def test_what_is_refused(apply_fn, tokens, labels, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LabelScorer(apply_fn, LENGTH, VOCAB, batch_size=2)(tokens, labels)
