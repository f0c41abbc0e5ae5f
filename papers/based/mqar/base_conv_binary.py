"""Solve MQAR over tokens of a = log2 c bits by 3 + ceil(log2(a + 1)) BaseConv layers: 2 more than needed.

The answer's bit t is the polynomial sum_j [q_i = k_j] v_jt of degree 2 a + 1 (Based, lemma F.2), which
takes ceil(log2(2 a + 1)) = 1 + ceil(log2(a + 1)) layers (theorem F.5). It can be grouped by the token x,

    sum_x [q_i = x] sum_j [k_j = x] v_jt,

products of a and of a + 1 factors, each affine in a bit, that two trees form side by side:

    layer               columns become
    1                   the factors of [q = x], for all x, and of [k = x] v_t, for all x and t
    ceil(log2(a + 1))   their products
    1                   running sums of [k = x] v_t * [q = x]
    1                   sum over x: the answer

So the bound of theorem F.5 is met except for two layers: the first, which is affine, and the last, a sum. The
upper bound that the paper compares it with, theorem F.7, is for one-hot tokens. As there, a query should
match at most one key: the values of several are added, as in the lemma. The cost is a width of
O(c log^2 c).
"""

import numpy as np

from papers.based.bounds.degree import layers_for
from papers.based.mqar.base_conv import running_sum
from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.primitives.column_blocks import (
    Part,
    Run,
    block,
    gated,
    multiply_blocks,
    repeated,
    rewrite,
)
from papers.zoology.primitives.one_hot import binary, literals


def solver(length: int, bits: int, strict: bool = False) -> Stack:
    """Return the stack from [Q | K | V], (N, 3 a), to `recall` of them, in its first a = `bits` columns."""
    shape = inner_shape(length, bits)
    tokens = 2**bits
    queries = Run(shape[1] - bits * tokens, tokens, bits)
    pairs = Run(0, tokens * bits, bits + 1)
    signs, constants = literals(binary(np.arange(tokens), bits))

    q, k, v = (block(i * bits, bits) for i in range(3))
    of_query = Part(block(queries.start, bits * tokens), q, signs, constants)
    key_signs, key_constants = np.repeat(signs, bits, axis=1), np.repeat(constants, bits)
    of_key = Part(block(0, bits * pairs.width), k, key_signs, key_constants)
    of_value = Part(pairs.block(bits), v, np.tile(np.eye(bits), tokens))
    read = gated(pairs.block(0), queries.block(0), repeated(tokens, bits), running_sum(length, int(strict)))
    total = Part(block(0, bits), pairs.block(0), np.tile(np.eye(bits), (tokens, 1)))
    return rewrite(shape, of_query, of_key, of_value).then(
        multiply_blocks(shape, pairs, queries), rewrite(shape, read), rewrite(shape, total)
    )


def recall(q: Matrix, k: Matrix, v: Matrix, strict: bool = False) -> Matrix:
    """Return the direct answer for 0s and 1s, (N, a) all: the sum of the values whose keys equal the query.

    A query sees only the rows above its own if `strict`, else its own row too.
    """
    equal = (q[:, None] == k[None]).all(axis=-1).astype(np.float64)
    return np.tril(equal, -int(strict)) @ v


def layers(bits: int) -> int:
    """Return how many layers `solver` has: 3 + ceil(log2(a + 1))."""
    return 3 + bits.bit_length()


def layers_needed(bits: int) -> int:
    """Return how many any stack needs (theorem F.5), ceil(log2(2 a + 1))."""
    return layers_for(degree=2 * bits + 1)


def inner_shape(length: int, bits: int) -> tuple[int, int]:
    """Return (N~, D~) of `solver`: N rows, a c (a + 2) columns."""
    return length, bits * 2**bits * (bits + 2)
