"""Layers on blocks of columns: what is rewritten, what is carried, and how many layers a product takes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from papers.check import EXACT
from papers.zoology.basic_layers import delta
from papers.zoology.primitives.column_blocks import Part, Run, block, multiply_blocks, rewrite


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_a_part_is_rewritten_and_the_rest_carried(length, width, lag, seed):
    rng = np.random.default_rng(seed)
    lag = min(lag, length - 1)
    u = rng.normal(size=(length, 3 * width))
    weights, bias_1, bias_2 = rng.normal(size=(3, width, width))
    part = Part(
        block(width, width), block(2 * width, width), weights, bias_1[0], delta(length, lag), bias_2[0]
    )
    y = rewrite(u.shape, part)(u)
    left, middle, right = np.split(u, 3, axis=1)
    moved = np.concatenate([np.zeros((lag, width)), middle[: length - lag]])
    expected = (right @ weights + bias_1[0]) * (moved + bias_2[0])
    np.testing.assert_allclose(y, np.hstack([left, expected, right]), rtol=0, atol=EXACT)


@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_blocks_are_multiplied_in_as_many_layers_as_the_longest_run_needs(width, counts, seed):
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *counts]) * width
    runs = [Run(int(start), width, count) for start, count in zip(starts[:-1], counts, strict=True)]
    u = rng.uniform(-1, 1, size=(3, starts[-1]))
    stack = multiply_blocks(u.shape, *runs)
    y = stack(u)
    for run in runs:
        blocks = u[:, run.start : run.start + run.width * run.count].reshape(3, run.count, width)
        np.testing.assert_allclose(y[:, block(run.start, width)], blocks.prod(axis=1), rtol=0, atol=EXACT)
    assert stack.account.layers == int(np.ceil(np.log2(max(counts))))
