"""Compute RWKV-4 by BaseConv: two convolutions, with non-polynomial functions outside (Zoology, H.2.2).

    y_t = r_t * sum_{i <= t} h_(t-i) e_i v_i / sum_{i <= t} h_(t-i) e_i,   e = exp(k), r = sigmoid(q)
    h_0 = exp(bonus),   h_l = exp((l - 1) w)   for l >= 1;         v = (shift conv u) W_v

The paper's algorithm 5 has one convolution, of softmax(k) * v. But the weights of an average over the past
sum to 1 over that past, at every token anew, and no softmax taken once does that: the denominator is a
convolution of its own. BaseConv does both side by side; exp, sigmoid and the division stay outside.
(With softmax(k) instead of e, the numerator is the paper's algorithm.)
"""

from dataclasses import dataclass

import numpy as np

from papers.zoology.base_conv import Matrix, Stack, convolve
from papers.zoology.basic_layers import delta
from papers.zoology.primitives.column_blocks import Part, block, convolved, gated, rewrite


@dataclass(frozen=True, eq=False)
class RWKV:
    """The linear part of RWKV's time mixing."""

    values: Matrix  # W_v, (d, d)
    shift: Matrix  # filters of the token shift of the values, mu and 1 - mu, (N, d)
    filters: Matrix  # h, (N, d), as `decay_filters` makes them

    def __call__(self, weights: Matrix, u: Matrix, receptance: Matrix) -> tuple[Matrix, Matrix]:
        """Compute the definition: e, u, r to numerator, r included, and denominator of y, (N, d) each."""
        v = convolve(self.shift, u) @ self.values
        return receptance * convolve(self.filters, weights * v), convolve(self.filters, weights)


def rwkv_by_columns(rwkv: RWKV) -> Stack:
    """Map [e | u | r] to [numerator | denominator | r] in 3 layers on N x 3 d."""
    length, width = rwkv.filters.shape
    shape, eye = (length, 3 * width), np.eye(width)
    e, u, r = (block(start, width) for start in range(0, shape[1], width))
    shifted = rewrite(shape, convolved(u, rwkv.shift))
    weighed = rewrite(shape, gated(e, u, rwkv.values, delta(length)), Part(u, e, eye))
    summed = rewrite(shape, gated(e, r, eye, rwkv.filters), convolved(u, rwkv.filters))
    return shifted.then(weighed, summed)


def decay_filters(length: int, log_decay: np.ndarray, bonus: np.ndarray) -> Matrix:
    """Return h, (N, d): exp(bonus) for the token itself, then exp(l w), l = 0, 1, ..., for `log_decay` w."""
    past = np.arange(length - 1)[:, None] * log_decay
    return np.exp(np.concatenate([bonus[None], past]))
