"""The transform: the same for the same function only; the bias that one length cannot show."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.hyper_self_attention.interactions.constructions import change_basis, exact
from papers.hyper_self_attention.interactions.data import Interactions, random_interactions
from papers.hyper_self_attention.interactions.embeddings import one_hot, random_orthogonal
from papers.hyper_self_attention.interactions.transform import gap, transform
from tests.ops import draw
from tests.tolerances import FLOAT64, assert_close


@given(draw.seeds, st.integers(1, 6))
def test_equal_for_equal_functions_only(seed, size):
    """Another basis or another split between C and W leaves T and targets alone; a change of f does not."""
    rng = np.random.default_rng(seed)
    truth = random_interactions(rng, size, 2)
    table, q = random_orthogonal(rng, size), random_orthogonal(rng, size)
    weights = exact(truth.f, truth.w, table)
    wanted = truth.f[..., None] * truth.w
    assert_close(transform(table, *weights), wanted, FLOAT64)
    assert_close(transform(table @ q.T, *change_basis(weights, q)), wanted, FLOAT64, "another basis")
    split = rng.uniform(0.5, 2, size=size)
    assert_close(transform(one_hot(size), truth.f / split, truth.w * split[:, None]), wanted, FLOAT64)
    changed = Interactions(truth.f + np.eye(size), truth.w)
    assert gap(transform(one_hot(size), changed.f, changed.w), wanted).largest > 1e-3
    assert np.abs(changed.targets(np.arange(size)) - truth.targets(np.arange(size))).max() > 1e-3
