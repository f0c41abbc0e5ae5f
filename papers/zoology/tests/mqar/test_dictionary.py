"""The dictionary against the direct answers, and on the rows of the library's MQAR task."""

import numpy as np
import pytest
from hypothesis import strategies as st

from based_jax.data.tasks.mqar import MQAR
from based_jax.data.tasks.task import IGNORE
from papers.zoology.mqar import dictionary

seeds = st.integers(0, 2**32 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("random_fill", [False, True])
@pytest.mark.parametrize("num_passes", [1, 2])
def test_every_label_of_the_task(random_fill, num_passes):
    """With a small vocabulary, so that the noise is full of keys."""
    task = MQAR(65, 50, 64, 8, random_fill=random_fill, num_passes=num_passes)
    segment = task.build(0)
    for tokens, labels in zip(np.asarray(segment.inputs), np.asarray(segment.labels), strict=True):
        asked = labels != IGNORE
        assert asked.sum() == task.num_pairs
        np.testing.assert_array_equal(dictionary.solve_sequence(tokens)[asked], labels[asked])
