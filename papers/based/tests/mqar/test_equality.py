"""Equality by solvers of MQAR."""

import numpy as np
import pytest

from papers.based.mqar import base_conv, base_conv_binary, base_conv_by_key
from papers.based.mqar.equality import equal, mistakes
from papers.zoology.primitives.one_hot import binary


@pytest.mark.parametrize("tokens", range(1, 6))
def test_one_hot_tokens(tokens):
    hot = np.eye(tokens)
    assert mistakes(base_conv.solver(2, tokens, strict=True), hot, hot[-1]) == 0
    assert mistakes(base_conv_by_key.solver(2, tokens, strict=True), hot, hot[0]) == 0


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_binary_tokens(bits):
    tokens = binary(np.arange(2**bits), bits)
    assert mistakes(base_conv_binary.solver(2, bits, strict=True), tokens, tokens[1]) == 0


def test_a_mask_on_the_diagonal_too_decides_nothing():
    hot = np.eye(3)
    assert mistakes(base_conv.solver(2, 3, strict=False), hot, hot[0]) == 9


def test_tokens_of_another_width_are_named():
    with pytest.raises(ValueError, match="second has shape"):
        equal(base_conv.solver(2, 3, strict=True), np.eye(3)[0], np.eye(2)[0], np.eye(3)[0])
