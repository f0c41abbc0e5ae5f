"""Solve MQAR over one-hot tokens by O(log log N) BaseConv layers (Based, theorem F.7).

The steps of `base_conv_steps`, as one stack on [Q | K | V]. What the proof moves between blocks of rows
is here in blocks of columns of one inner matrix, which a layer rewrites or keeps
(`primitives.column_blocks`):

    layer                  columns become                                      steps of the proof
    1                      each key times the code of its row;                 1
                           the bits of value n, in row n only                  4, 5
    1                      running sums of the codes * query                   1, 2
    1 + ceil(log2 b)       sum of the d blocks, one-hot: L                     2, 3
    1                      running sums of the values' bits * L                6, 7
    1 + ceil(log2 b')      sum of the N blocks, one-hot: the answer            8

with b = ceil(log2(N + 1)) and b' = ceil(log2(d + 1)). The running sums put every value's bits in all rows
from its own on, and L is 0 elsewhere, so step 6's permutation and its copy to the rows above are not
needed. The theorem's inner matrix is O(n log n) on both sides, n = max(N, d); this one has N rows.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.primitives.column_blocks import Part, block, gated, repeated, rewrite
from papers.zoology.primitives.one_hot import code_width, codes, one_hot, one_hot_layers


def solver(length: int, tokens: int, strict: bool = False) -> Stack:
    """Return the stack from [Q | K | V], (N, 3 d), to `base_conv_steps.attention`, in its first d columns.

    Rows are one-hot or zero, and every query has at most one match: among the rows above its own if `strict`
    (MQAR's definition), else its own row's key counts too (theorem F.7).
    """
    shape = inner_shape(length, tokens)
    bits, value_bits = code_width(length), code_width(tokens)
    q, k, v = (block(i * tokens, tokens) for i in range(3))
    keys = block(3 * tokens, tokens * bits)
    values = block(shape[1] - length * value_bits, length * value_bits)

    write = rewrite(
        shape,
        Part(keys, k, repeated(tokens, bits), bias_2=np.tile(codes(length), tokens)),
        Part(values, v, np.tile(codes(tokens), length), bias_2=repeated(length, value_bits)),
    )
    read = gated(keys, q, repeated(tokens, bits), running_sum(length, int(strict)))
    select = gated(values, block(0, length), repeated(length, value_bits), running_sum(length))
    return write.then(
        rewrite(shape, read),
        one_hot(shape, length, code=keys.start, copies=tokens),
        rewrite(shape, select),
        one_hot(shape, tokens, code=values.start, copies=length),
    )


def layers(length: int, tokens: int) -> int:
    """Return how many layers `solver` has: 5 + ceil(log2 b) + ceil(log2 b')."""
    return 3 + one_hot_layers(length) + one_hot_layers(tokens)


def inner_shape(length: int, tokens: int) -> tuple[int, int]:
    """Return (N~, D~) of `solver`: N rows; the values' bits take N b' columns; the rest share the others."""
    bits, value_bits = code_width(length), code_width(tokens)
    shared = max((3 + bits) * tokens, length * bits, tokens * value_bits)
    return length, shared + length * value_bits


def running_sum(length: int, start: int = 0) -> Matrix:
    """Return the filter, (N, 1), that sums the rows at least `start` above."""
    return (np.arange(length)[:, None] >= start).astype(np.float64)
