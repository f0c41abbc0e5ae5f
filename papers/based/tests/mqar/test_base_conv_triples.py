"""The BaseConv solvers of MQAR on sequences k_0, v_0, q_0, k_1, ..."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.based.mqar import base_conv, base_conv_binary, base_conv_by_key
from papers.based.mqar.base_conv_steps import attention, instance
from papers.based.mqar.base_conv_triples import FRONT_LAYERS, on_triples

seeds = st.integers(0, 2**32 - 1)


def interleaved(q, k, v):
    return np.stack([k, v, q], axis=1).reshape(-1, q.shape[1])


@given(st.integers(1, 5), st.integers(1, 6), st.booleans(), seeds)
def test_one_hot_tokens(length, tokens, strict, seed):
    q, k, v = instance(np.random.default_rng(seed), length, tokens)
    for solver in (
        base_conv.solver(3 * length, tokens, strict),
        base_conv_by_key.solver(3 * length, tokens, strict=strict),
    ):
        stack = on_triples(solver, tokens)
        np.testing.assert_array_equal(stack(interleaved(q, k, v))[2::3], attention(q, k, v, strict))
        assert stack.account.layers == solver.account.layers + FRONT_LAYERS


@given(st.integers(1, 5), st.integers(1, 3), st.booleans(), seeds)
def test_binary_tokens(length, bits, strict, seed):
    q, k, v = np.random.default_rng(seed).integers(0, 2, size=(3, length, bits)).astype(np.float64)
    stack = on_triples(base_conv_binary.solver(3 * length, bits, strict), bits)
    expected = base_conv_binary.recall(q, k, v, strict)
    np.testing.assert_array_equal(stack(interleaved(q, k, v))[2::3], expected)


def test_rows_that_are_no_triples_are_named():
    with pytest.raises(ValueError, match="rows of solver = 4: expected a multiple of 3"):
        on_triples(base_conv.solver(4, 2), 2)
