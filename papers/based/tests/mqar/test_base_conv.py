"""MQAR by BaseConv layers: three stacks and the proof's matrices against the direct answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.based.bounds.degree import degree, layers_for, outputs
from papers.based.mqar import base_conv, base_conv_binary, base_conv_by_key
from papers.based.mqar.base_conv_steps import attention, instance

seeds = st.integers(0, 2**32 - 1)
few = st.integers(1, 10)


@given(few, few, st.booleans(), seeds)
def test_one_stack_by_position(length, tokens, strict, seed):
    q, k, v = instance(np.random.default_rng(seed), length, tokens)
    stack = base_conv.solver(length, tokens, strict)
    y = stack(np.hstack([q, k, v]), (length, tokens))
    np.testing.assert_array_equal(y, attention(q, k, v, strict))
    assert stack.account.layers == base_conv.layers(length, tokens)
    assert stack.shape == base_conv.inner_shape(length, tokens)


@given(few, few, st.integers(2, 5), st.booleans(), seeds)
def test_one_stack_by_key(length, tokens, base, strict, seed):
    q, k, v = instance(np.random.default_rng(seed), length, tokens)
    stack = base_conv_by_key.solver(length, tokens, base, strict)
    y = stack(np.hstack([q, k, v]), (length, tokens))
    np.testing.assert_array_equal(y, attention(q, k, v, strict))
    assert stack.account.layers == base_conv_by_key.layers(tokens, base)


@given(few, st.integers(1, 3), st.booleans(), seeds)
def test_one_stack_over_binary_tokens(length, bits, strict, seed):
    q, k, v = np.random.default_rng(seed).integers(0, 2, size=(3, length, bits)).astype(np.float64)
    stack = base_conv_binary.solver(length, bits, strict)
    y = stack(np.hstack([q, k, v]), (length, bits))
    np.testing.assert_array_equal(y, base_conv_binary.recall(q, k, v, strict))
    assert stack.account.layers == base_conv_binary.layers(bits)


@pytest.mark.parametrize(("length", "bits"), [(1, 1), (2, 1), (1, 2), (1, 3)])
def test_a_stack_over_binary_tokens_has_the_degree_of_the_lower_bound(length, bits):
    values = outputs(base_conv_binary.solver(length, bits), length, 3 * bits)
    assert degree(values) == 2 * bits + 1
    assert base_conv_binary.layers_needed(bits) == layers_for(2 * bits + 1)
