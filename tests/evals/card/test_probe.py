"""The probe scores values at keys, and filler where no value is asked for."""

import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.data.tasks import RecallProbe
from based_jax.evals.card.recall_card import probe, recall_probe
from based_jax.evals.label_scores import LabelScorer

FILLER, VOCAB = 9, 40
TASK = RecallProbe(VOCAB, num_examples=6, length=32, num_pairs=4, filler=FILLER)
SURE = (np.e**3 + VOCAB - 1) / np.e**3
"""perplexity of a logit of 3 among zeros"""


def sure_of(choice):
    return 3.0 * (jnp.arange(VOCAB) == choice[..., None])


def induction(tokens):
    """Return logits of a model that repeats what followed the token before, or else says filler."""
    row, position = jnp.arange(tokens.shape[1])[:, None], jnp.arange(tokens.shape[1])
    same = (tokens[:, :, None] == tokens[:, None, :]) & (position < row) & (tokens != FILLER)[:, :, None]
    after = jnp.roll(tokens, -1, axis=1)
    return sure_of(jnp.where(same.any(-1), jnp.take_along_axis(after, same.argmax(-1), axis=1), FILLER))


def only_filler(tokens):
    return sure_of(jnp.full_like(tokens, FILLER))


@pytest.mark.parametrize(("model", "accuracy", "factor"), [(induction, 1, 1), (only_filler, 0, np.e**3)])
def test_values_and_filler_are_measured_apart(model, accuracy, factor):
    """The induction head is wrong about filler after a key, which must not be scored."""
    scorer = LabelScorer(model, length=32, vocab_size=VOCAB, batch_size=6)
    wanted = {"accuracy": accuracy, "perplexity": factor * SURE, "filler_perplexity": SURE}
    assert probe(scorer, TASK, seed=0) == pytest.approx(wanted, rel=1e-5)


def test_rows_without_filler():
    """Every second token after eight pairs of 32 tokens is a key: no filler is left to ask for."""
    scorer = LabelScorer(induction, length=32, vocab_size=VOCAB, batch_size=6)
    four, eight = recall_probe(scorer, 32, (4, 8, 16), 6, 0, FILLER)
    assert four["filler_perplexity"] == pytest.approx(SURE, rel=1e-5)
    assert (eight["pairs"], eight["filler_perplexity"]) == (8, None)
