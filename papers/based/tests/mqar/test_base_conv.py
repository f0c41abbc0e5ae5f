"""MQAR by BaseConv layers: three stacks and the proof's matrices against the direct answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.based.bounds.degree import degree, layers_for, outputs
from papers.based.mqar import base_conv, base_conv_binary, base_conv_by_key, base_conv_steps
from papers.based.mqar.base_conv_growth import growth
from papers.based.mqar.base_conv_steps import attention, instance, solve
from papers.zoology.primitives.one_hot import binary

seeds = st.integers(0, 2**32 - 1)
few = st.integers(1, 10)


@given(few, few, seeds)
def test_the_eight_steps(length, tokens, seed):
    q, k, v = instance(np.random.default_rng(seed), length, tokens)
    np.testing.assert_array_equal(solve(q, k, v), attention(q, k, v))


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


@given(few, few, seeds)
def test_one_digit_is_linear_attention_with_any_number_of_matches(length, tokens, seed):
    q, k, v = np.random.default_rng(seed).normal(size=(3, length, tokens))
    stack = base_conv_by_key.solver(length, tokens, base=max(tokens, 2))
    np.testing.assert_allclose(stack(np.hstack([q, k, v]), q.shape), attention(q, k, v), rtol=0, atol=1e-10)
    assert stack.account.layers == 4


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


@given(few, st.integers(1, 3), st.booleans(), seeds)
def test_binary_and_one_hot_tokens_have_the_same_answers(length, bits, strict, seed):
    q, k, v = np.random.default_rng(seed).integers(0, 2**bits, size=(3, length))
    v_bits, hot = binary(v, bits), np.eye(2**bits)
    np.testing.assert_array_equal(
        base_conv_binary.recall(binary(q, bits), binary(k, bits), v_bits, strict),
        attention(hot[q], hot[k], hot[v], strict) @ binary(np.arange(2**bits), bits),
    )


def test_a_larger_stack():
    q, k, v = instance(np.random.default_rng(0), 24, 40)
    expected = attention(q, k, v)
    assert expected.sum() >= 10  # most queries have a match
    np.testing.assert_array_equal(base_conv.solver(24, 40)(np.hstack([q, k, v]), q.shape), expected)


def test_instances_have_every_case():
    cases = [instance(np.random.default_rng(seed), 6, 8) for seed in range(20)]
    found = np.stack([np.tril(q @ k.T).sum(axis=1) for q, k, _ in cases])
    queries = np.stack([q.sum(axis=1) for q, _, _ in cases])
    keys = np.stack([k.sum(axis=0) for _, k, _ in cases])
    assert keys.max() == 1
    assert set(np.unique(found)) == {0, 1}
    assert np.any((queries == 1) & (found == 0))
    assert np.any(queries == 0)


def test_step_six_is_a_permutation_of_bits():
    np.testing.assert_array_equal(base_conv_steps.regroup(np.arange(6.0), 3), [0, 3, 1, 4, 2, 5])


@pytest.mark.parametrize("exponent", range(1, 21))
def test_growth(exponent):
    row = growth(2**exponent)
    assert row.by_position == 5 + 2 * int(np.ceil(np.log2(exponent + 1)))
    assert row.by_key == 4 + int(np.ceil(np.log2(exponent)))
    assert 2 ** (row.needed - 1) < 2 * exponent + 1 <= 2**row.needed
    assert row.binary == row.needed + 2
    assert row.width_by_key < row.width
    assert row.by_key < row.by_position
    if exponent >= 3:
        assert row.width <= 4 * row.bound


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="length = 0: expected at least 1"):
        base_conv.solver(0, 2)
    with pytest.raises(ValueError, match="tokens = 0: expected at least 1"):
        base_conv_by_key.solver(2, 0)
    with pytest.raises(ValueError, match="base = 1: expected at least 2"):
        base_conv_by_key.solver(2, 2, base=1)
    with pytest.raises(ValueError, match="bits = 0: expected at least 1"):
        base_conv_binary.solver(2, 0)
