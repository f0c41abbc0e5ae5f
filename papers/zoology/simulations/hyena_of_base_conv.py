"""Compute BaseConv by Hyena: a layer is one Hyena of order 1, given the positions (Zoology, H.12).

A Hyena of order L has no biases: it is homogeneous of degree L + 1 in its input, so it cannot even express
the projection alone, a layer with b2 = 1 and h = 0. The paper's proof is about layers without biases. With
further columns that distinguish the rows, and further rows above, biases can be expressed:

    b1    a projection of the positions
    b2    after the filter, by an impulse in row 0 that reaches the N rows further down
"""

import numpy as np

from papers.zoology.base_conv import Layer, Matrix
from papers.zoology.basic_layers import delta
from papers.zoology.primitives.column_blocks import block
from papers.zoology.simulations.hyena import Hyena


def hyena_of_base_conv(layer: Layer) -> Hyena:
    """Return the Hyena that equals this layer for inputs of the form `with_positions`; so are its outputs."""
    length, width = layer.filters.shape
    rows = 2 * length
    u, positions = block(0, width), block(width, rows)
    gate, value = np.zeros((2, width + rows, width + rows))
    gate[u, u], value[u, u] = layer.weights, np.eye(width)
    gate[width + length :, u] = layer.bias_1
    value[positions.start, u] = 1  # the impulse
    gate[positions, positions] = value[positions, positions] = np.eye(rows)
    filters = np.tile(delta(rows), (1, width + rows))
    filters[:, u] = np.concatenate([layer.filters, layer.bias_2])
    return Hyena(gate[None], value, filters[None])


def with_positions(u: Matrix) -> Matrix:
    """Put [0; u] next to all 2 N positions, one-hot: (N, D) to (2 N, D + 2 N)."""
    return np.concatenate([np.pad(u, ((len(u), 0), (0, 0))), np.eye(2 * len(u))], axis=1)


def without_positions(u: Matrix) -> Matrix:
    """Convert (2 N, D + 2 N) back to (N, D)."""
    length = len(u) // 2
    return u[length:, : -2 * length]
