"""Compute H3, a Hyena of order 2, by three BaseConv layers (H3, section 3; Zoology, section H.1.2).

    y = q * (h2 conv (k' * v)),   k' = h1 conv k;   q, k, v = u W_q, u W_k, u W_v

h1 is the shift and h2 the diagonal state space, both given as filters; heads have one channel. Biases of the
projections are omitted: they are those of the layers.
"""

from dataclasses import dataclass

import numpy as np

from papers.zoology.base_conv import Matrix, Stack, convolve
from papers.zoology.simulations.hyena import Hyena, hyena_by_columns


@dataclass(frozen=True, eq=False)
class H3:
    """The operator between the projections of H3."""

    queries: Matrix  # W_q, (d, d)
    keys: Matrix  # W_k, (d, d)
    values: Matrix  # W_v, (d, d)
    shift: Matrix  # h1, (N, d)
    diagonal: Matrix  # h2, (N, d)

    def __call__(self, u: Matrix) -> Matrix:
        """Compute the definition: (N, d) to (N, d)."""
        q, k, v = (u @ weights for weights in (self.queries, self.keys, self.values))
        return q * convolve(self.diagonal, convolve(self.shift, k) * v)


def hyena_of_h3(h3: H3) -> Hyena:
    """Return the Hyena that begins with k, and gates with v, then with q."""
    gates, filters = np.stack([h3.values, h3.queries]), np.stack([h3.shift, h3.diagonal])
    return Hyena(gates, h3.keys, filters)


def h3_by_columns(h3: H3) -> Stack:
    """Return the operator in 3 layers on N x 2 d."""
    return hyena_by_columns(hyena_of_h3(h3))
