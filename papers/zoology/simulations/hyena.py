"""Compute Hyena by BaseConv, a layer for each of its steps (Zoology, algorithm 3 and proposition H.12).

    p^l = h_s conv (u W_l),   v = h_s conv (u W_v),   z^0 = v,   z^l = p^l * (h^l conv z^(l-1)),   l = 1..L

A BaseConv layer does one step, if it has z in the columns that it convolves and u in those that it projects.
Here u is next to z, in its own columns; `hyena_rows` has it below z, as in the paper.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from papers.zoology.base_conv import Matrix, Stack, convolve
from papers.zoology.basic_layers import convolution
from papers.zoology.primitives.column_blocks import Part, block, gated, rewrite


@dataclass(frozen=True, eq=False)
class Hyena:
    """A Hyena operator."""

    gates: np.ndarray  # W_1 .. W_L, (L, d, d)
    values: Matrix  # W_v, (d, d)
    filters: np.ndarray  # h^1 .. h^L, (L, N, d)
    short: Matrix | None = None  # h_s, (N, 1), one short filter for all channels

    @property
    def steps(self) -> Iterable[tuple[Matrix, Matrix]]:
        """Yield W_l and h^l, l = 1..L."""
        return zip(self.gates, self.filters, strict=True)

    def __call__(self, u: Matrix) -> Matrix:
        """Compute the definition: (N, d) to (N, d)."""
        z = self._project(u, self.values)
        for weights, filters in self.steps:
            z = self._project(u, weights) * convolve(filters, z)
        return z

    def _project(self, u: Matrix, weights: Matrix) -> Matrix:
        return u @ weights if self.short is None else convolve(self.short, u @ weights)


def hyena_by_columns(hyena: Hyena) -> Stack:
    """Return the operator in L + 2 layers on N x 2 d, or L + 1 without a short filter.

    [u | 0] to [u W_v | u], then the short filter, which passes through all projections as it is the same for
    all channels, then the steps: [z^(l-1) | u] to [z^l | u].
    """
    _, length, width = hyena.filters.shape
    shape = (length, 2 * width)
    z, u = block(0, width), block(width, width)
    start = rewrite(shape, Part(z, z, hyena.values), Part(u, z, np.eye(width)))
    short = Stack(shape) if hyena.short is None else convolution(shape, hyena.short)
    steps = (rewrite(shape, gated(z, u, weights, filters)) for weights, filters in hyena.steps)
    return start.then(short, *steps)
