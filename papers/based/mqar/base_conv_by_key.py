"""Solve MQAR over one-hot tokens with a single look-up: 4 + ceil(log2 p) BaseConv layers for any length.

Theorem F.7 of Based looks up twice, the position and then the value there. A key can also write its value
under its token at once, where the query reads it. The value is stored there as p digits of base r, each
one-hot (the p-hot encoding of definition F.7, r^p >= d), which costs d p r columns:

    layer          columns become
    1              K, each column p r times
    1              times the value's digits
    1              their running sums * query
    1              sum of the d blocks; for each digit, the tokens that have it
    ceil(log2 p)   AND over the digits: the answer

A query without a match reads no digit, so it answers 0. With base 2 that is 4 + ceil(log2 ceil(log2 d))
layers in O(d log d) columns. For N = d, a power of 2, both are fewer than those of `base_conv`.

A larger base trades columns for layers: p digits of base ceil(d^(1/p)) take p d^(1 + 1/p) columns or so,
and a fixed number of layers. With p = 1 that is linear attention's d x d state in 4 layers, whatever N and
d. The paper's bounds allow it: for one-hot tokens theorem F.6 asks for one layer, and theorem F.4 is for N
different keys in far fewer than N columns. Tokens in binary are another matter (`base_conv_binary`).
"""

from itertools import count

import numpy as np

from papers.based.mqar.base_conv import running_sum
from papers.zoology.base_conv import Stack
from papers.zoology.basic_layers import delta
from papers.zoology.primitives.column_blocks import (
    Part,
    Run,
    block,
    gated,
    multiply_blocks,
    repeated,
    rewrite,
)


def solver(length: int, tokens: int, base: int = 2, strict: bool = False) -> Stack:
    """Return a stack with the same map as `base_conv.solver`, by digits of base r, at least 2.

    Rows are one-hot or zero, and every query has at most one match (any number of them if base >= d).
    """
    shape = inner_shape(length, tokens, base)
    digits = digit_count(tokens, base)
    width = digits * base
    q, k, v = (block(i * tokens, tokens) for i in range(3))
    keys = block(3 * tokens, tokens * width)
    hot = p_hot(tokens, base)
    having_digit = np.einsum("ts,vtx->txsv", np.eye(digits), hot).reshape(width, digits * tokens)

    copy = Part(keys, k, repeated(tokens, width))
    write = gated(keys, v, np.tile(hot.reshape(tokens, width), tokens), delta(length))
    read = gated(keys, q, repeated(tokens, width), running_sum(length, int(strict)))
    total = Part(block(0, digits * tokens), keys, np.tile(having_digit, (tokens, 1)))
    layers = (rewrite(shape, part) for part in (copy, write, read, total))
    return Stack(shape).then(*layers, multiply_blocks(shape, Run(0, tokens, digits)))


def layers(tokens: int, base: int = 2) -> int:
    """Return how many layers `solver` has, whatever the length: 4 + ceil(log2 p)."""
    return 4 + (digit_count(tokens, base) - 1).bit_length()


def inner_shape(length: int, tokens: int, base: int = 2) -> tuple[int, int]:
    """Return (N~, D~) of `solver`: N rows, d (3 + p r) columns."""
    return length, tokens * (3 + digit_count(tokens, base) * base)


def p_hot(tokens: int, base: int) -> np.ndarray:
    """Return the p-hot encoding of tokens 0..d - 1: (d, p, r), one-hot over r, lowest digit first."""
    powers = base ** np.arange(digit_count(tokens, base))
    return np.eye(base)[np.arange(tokens)[:, None] // powers % base]


def digit_count(tokens: int, base: int) -> int:
    """Return p, the digits that d numbers need in base r: the smallest p >= 1 with r^p >= d."""
    return next(digits for digits in count(1) if base**digits >= tokens)
