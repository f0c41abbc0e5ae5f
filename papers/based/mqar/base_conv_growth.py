"""Count layers and widths of the BaseConv solvers of MQAR by their formulas, N = d = c tokens.

Stacks that fit in memory have exactly these layers and shapes, as the tests check.
"""

from math import log2
from typing import NamedTuple

from papers.based.mqar import base_conv, base_conv_binary, base_conv_by_key


class Growth(NamedTuple):
    """One size, N = d = c."""

    tokens: int
    by_position: int  # layers of `base_conv`, theorem F.7
    by_key: int  # layers of `base_conv_by_key`, binary digits
    binary: int  # layers of `base_conv_binary`, whose tokens are log2 c bits
    needed: int  # layers that those need at least (theorem F.5), ceil(log2(2 log2 c + 1))
    width: int  # columns of `base_conv`; it has N rows
    width_by_key: int  # the same of `base_conv_by_key`
    bound: float  # z = N log2 N; the theorem's inner matrix is 4 z x z


def growth(tokens: int) -> Growth:
    """Return layers and widths for N = d = c, a power of 2 from 2 on."""
    bits = tokens.bit_length() - 1
    return Growth(
        tokens,
        base_conv.layers(tokens, tokens),
        base_conv_by_key.layers(tokens),
        base_conv_binary.layers(bits),
        base_conv_binary.layers_needed(bits),
        base_conv.inner_shape(tokens, tokens)[1],
        base_conv_by_key.inner_shape(tokens, tokens)[1],
        tokens * log2(tokens),
    )
