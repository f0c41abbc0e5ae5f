"""What the mixers that select tokens share: hard selection, and losses that are collected on request."""

import jax
import numpy as np
import pytest

from based_jax import mixers
from based_jax.testing import laws
from tests.mixers import selection
from tests.mixers.built import runner
from tests.mixers.selection import IDS, MASK, WIDTH, X
from tests.tolerances import FLOAT32, assert_close


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sigmoid_lookups", {}),
        pytest.param("sigmoid_lookups", {"lookups": 2}, marks=pytest.mark.release),
        pytest.param("selective_lookups", {"causal": False}, marks=pytest.mark.release),
    ],
    ids=str,
)
def test_hard_selection_updates_the_highest_weights_of_each_document(name, options):
    soft, hard = (runner(name, d_model=WIDTH, hard=hard, **options) for hard in (False, True))
    for context in ({}, {"mask": MASK}, {"segment_ids": IDS}):
        y, chosen = (laws.packed(mixer, X, **context) for mixer in (soft, hard))
        real = context.get("mask", np.ones(X.shape[:2], bool))
        is_updated = real & np.any(chosen != X, axis=-1)
        expected = np.where(is_updated[..., None], y, X)
        assert_close(*(np.where(real[..., None], array, 0) for array in (chosen, expected)), FLOAT32)
        counts = {13: 2, 7: 2, 5: 2, 8: 2} if "lookups" in options else {13: 4, 7: 3, 5: 3, 8: 3}
        lengths = [[5, 8], [5, 8]] if "segment_ids" in context else [[13], [7 if "mask" in context else 13]]
        order = selection.scores(soft)
        for row, sizes in enumerate(lengths):
            begin = 0
            for size in sizes:
                best = begin + np.argsort(-order[row, begin : begin + size])[: counts[size]]
                assert np.flatnonzero(is_updated[row, begin : begin + size]).size == counts[size]
                assert np.all(is_updated[row, best])
                begin += size


def test_losses_are_no_variables_and_only_collected_on_request():
    for name in ("sigmoid_lookups", "selected_attention"):
        mixer = mixers.make(name, d_model=WIDTH)
        variables = jax.eval_shape(mixer.init, jax.random.key(0), X)
        assert set(variables) == {"params"}
        assert len(jax.eval_shape(mixer.apply, variables, X)) == 2  # outputs and state, no collection
    assert mixers.auxiliary_loss({}) == 0
