"""Apply layers to some rows and keep the others (Zoology, proposition H.10; Based, F.13, corollary F.3).

A layer convolves and multiplies all rows at once. Rows to keep are therefore moved further down by one more
tap of the filter, each time to rows of zeros: there (0 W + 1) * (...) passes them on, and only garbage
remains where they come from. In the end a circular layer moves them back.

    slot 0       slot 1       slot 2       slot 3
    v1 x v2        -            -            -
      x          v1   v2        -            -         put aside
      f1(x)      garbage      v1   v2        -         the first layer of f
      f1(x)        -            -          v1   v2     put aside again, the garbage cleared
      f2(f1(x))  v1   v2        -          garbage     the second
    v1 f v2        -            -            -         back

That is 2 L + 1 layers for an f of L layers, so 3 for one. Based states 8 for one; its proof takes 5 and two
shifts up, which come to 11 if a shift up takes 3, as stated there, and to 7 in the one layer of `shift_up`.
"""

import numpy as np

from papers.zoology.base_conv import Layer, Matrix, Shape, Stack
from papers.zoology.basic_layers import delta, masked_convolution, one_layer

SLOTS = 3
"""Slots for the kept rows, in turn."""


def remember(shape: Shape, f: Stack, start: int, rows: int) -> Stack:
    """Apply f to the n rows from `start` on, as if they were the whole matrix, and keep the others of `rows`.

    `rows` is n + s + m in the papers; the rows of the inner matrix below them are 0, and it has `rows_needed`
    in all. The layers of f, of inner shape (n, D), may be circular. Takes 2 L + 1 layers, or none if f has
    none.
    """
    length, _width = shape
    size = f.shape[0]
    stride = rows + _reach(f)
    home, kept = np.zeros((2, length, 1))
    home[start : start + size] = 1
    kept[:rows] = 1 - home[:rows]

    def move(slot: int, to: int) -> Stack:
        """Move the kept rows from one slot to another; f's stay, and all else becomes 0."""
        lag = (to - slot) * stride
        mask = home + np.roll(kept, to * stride, axis=0)
        return masked_convolution(shape, delta(length, 0, lag % length), mask, circular=lag < 0)

    def apply(layer: Layer, slot: int, to: int) -> Stack:
        """Apply the layer to its rows, while the kept rows move on."""
        lag = (to - slot) * stride
        taps, bias_1, bias_2 = np.zeros((3, *shape))
        taps[:size] = layer.filters
        if layer.circular:  # f has fewer rows than the matrix: lag j is also lag j - n
            taps[-size:] += layer.filters
        taps[lag % length] += 1
        bias_1[:] = np.roll(kept, to * stride, axis=0)
        bias_1[start : start + size], bias_2[start : start + size] = layer.bias_1, layer.bias_2
        return one_layer(shape, layer.weights, bias_1, taps, bias_2, circular=layer.circular or lag < 0)

    stack, slot = Stack(shape), 0
    for layer in f.layers:
        clear, to = slot % SLOTS + 1, (slot + 1) % SLOTS + 1
        stack = stack.then(move(slot, clear), apply(layer, clear, to))
        slot = to
    return stack.then(move(slot, 0)) if f.layers else stack


def rows_needed(f: Stack, rows: int) -> int:
    """Return how many rows `remember` needs: 3 (rows + t) for one layer of f, else 4 (rows + t).

    t is the reach of f's filters, at most its n - 1 rows, and n for circular ones. Based asks for
    3n + 3m + 2s + 2t rows, where `rows` is n + s + m.
    """
    return min(1 + 2 * len(f.layers), 1 + SLOTS) * (rows + _reach(f))


def applied(u: Matrix, f: Stack, start: int) -> Matrix:
    """Compute the result of `remember` directly."""
    z = u.copy()
    size = f.shape[0]
    z[start : start + size] = f(u[start : start + size])
    return z


def remember_window(shape: Shape, filters: Matrix, factors: Matrix, rows: int) -> Stack:
    """Compute factors * (filters conv x) on the first n rows, x, and keep the others of `rows`; two layers.

    Filters and factors are (n, D), with n the rows of x and the s below that take up what the filter spreads.
    This needs no projection, so b1 can clear all other rows, and no rows have to be moved before. The
    proposition has 5 layers, 3 of them for a shift up.
    """
    size = len(filters)
    taps, mask, back = np.zeros((3, *shape))
    taps[:size] = filters
    taps[rows] = 1
    mask[:size] = factors
    mask[rows + size : 2 * rows] = back[:rows] = 1
    forth = masked_convolution(shape, taps, mask)
    return forth.then(masked_convolution(shape, delta(shape[0], 0, shape[0] - rows), back, circular=True))


def _reach(f: Stack) -> int:
    """Return the largest lag of a nonzero filter tap; circular filters reach n rows, down and up."""
    lags = [np.flatnonzero(np.any(layer.filters, axis=1)).max(initial=0) for layer in f.layers]
    circular = any(layer.circular for layer in f.layers)
    return f.shape[0] if circular else int(max(lags, default=0))
