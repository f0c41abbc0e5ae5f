"""Convert binary numbers to one-hot rows in 1 + ceil(log2 b) layers, b bits (Based, proposition F.12).

Position j, from 0, has the code j + 1, so the code 0 is left for "none", which becomes a row of zeros. The
row of a code is the AND over its bits t of "bit t fits position j", and that is u_t or 1 - u_t, one affine
layer for all t and j. The tree of ANDs takes the rest.

The proposition stacks the b masks below each other, in N' log N' rows. Then every level of the tree is
followed by a shift up of three layers, which the stated count, ceil(log log N') + O(1), leaves out. Side by
side, in N' b columns, nothing has to move, and the count is as stated.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Shape, Stack
from papers.zoology.primitives.column_blocks import Part, Run, block, multiply_blocks, rewrite


def one_hot(shape: Shape, count: int, code: int = 0, copies: int = 1, at: int = 0) -> Stack:
    """Convert codes of b = `code_width(count)` bits, lowest first, to one-hot rows of N' = `count` columns.

    From column `code` on there are `copies` codes side by side, whose sum is read. The one-hot rows begin at
    column `at`; the layers use N' b columns from there as scratch, and these may lie over the code.
    """
    bits = code_width(count)
    signs, constants = literals(codes(count))
    affine = Part(block(at, bits * count), block(code, bits * copies), np.tile(signs, (copies, 1)), constants)
    return rewrite(shape, affine).then(multiply_blocks(shape, Run(at, count, bits)))


def literals(codes: Matrix) -> tuple[Matrix, np.ndarray]:
    """Return signs (b, b count) and constants (b count,) for codes (count, b) of 0s and 1s.

    Column (t, j) of ``u @ signs + constants`` is "bit t of u fits code j". A bit 1 gives u_t, a bit 0 gives
    1 - u_t; multiplied by the bit itself, as the proof's masks are, a 0 would rule out every position.
    """
    count, bits = codes.shape
    signs = np.kron(np.eye(bits), np.ones((1, count))) * (2 * codes - 1).T.reshape(1, -1)
    return signs, (1 - codes).T.reshape(-1)


def one_hot_rows(numbers: np.ndarray, count: int) -> Matrix:
    """Compute `one_hot` directly: (N,) numbers to (N, count); numbers not in 1..count have a row of zeros."""
    return (numbers[:, None] == np.arange(1, count + 1)).astype(np.float64)


def codes(count: int) -> Matrix:
    """Return the codes of positions 0..count - 1, (count, b): row j is j + 1 in binary, lowest bit first."""
    return binary(np.arange(1, count + 1), code_width(count))


def binary(numbers: np.ndarray, bits: int) -> Matrix:
    """Convert (N,) integers to their lowest bits, (N, bits), lowest first."""
    return (numbers[:, None] >> np.arange(bits) & 1).astype(np.float64)


def code_width(count: int) -> int:
    """Return b = ceil(log2(count + 1)), the bits of a code."""
    return count.bit_length()


def one_hot_layers(count: int) -> int:
    """Return the number of layers of `one_hot`: 1 + ceil(log2 b)."""
    return 1 + (code_width(count) - 1).bit_length()
