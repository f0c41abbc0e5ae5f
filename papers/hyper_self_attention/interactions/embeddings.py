"""Make tables of embeddings: row a is the vector of symbol a (Ustaomeroglu & Qu 2025, section 3, appendix B).

All are float64. `one_hot`, `random_orthogonal` and `sinusoidal` have orthonormal rows, and `product`
preserves orthonormal rows; `concatenated` instead keeps the features apart, with the sum of their widths
rather than the product.
"""

from functools import reduce

import numpy as np

from based_jax.typing import Float


def one_hot(size: int) -> Float[np.ndarray, "S S"]:
    """Return the identity: symbol a is the unit vector e_a."""
    return np.eye(size)


def random_orthogonal(rng: np.random.Generator, size: int) -> Float[np.ndarray, "S S"]:
    """Return a random orthogonal table, uniform (Haar): another orthonormal basis for `size` symbols."""
    q, r = np.linalg.qr(rng.normal(size=(size, size)))
    return q * np.sign(np.diag(r))


def sinusoidal(size: int, orthonormal: bool = True) -> Float[np.ndarray, "S S"]:
    """Return Fourier features of the position a on a circle of N = `size` cells (appendix B, equation 16).

    The columns are 1/sqrt(2), then sin(2 pi k a / N) and cos(2 pi k a / N) for k = 1..N/2-1, then
    cos(pi a) / sqrt(2). The paper prints another 1/sqrt(2) on the last cosine of the middle part; with it the
    rows would not be orthogonal. N is even; without the scale sqrt(2/N) of `orthonormal` the inner product of
    two rows is N/2 or 0.
    """
    position, frequency = np.arange(size), np.arange(1, size // 2)
    angle = 2 * np.pi / size * np.outer(position, frequency)
    waves = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(size, size - 2)
    ends = np.stack([np.ones(size), (-1.0) ** position], axis=-1) / np.sqrt(2)
    table = np.concatenate([ends[:, :1], waves, ends[:, 1:]], axis=-1)
    return table * np.sqrt(2 / size) if orthonormal else table


def product(
    first: Float[np.ndarray, "S d"], second: Float[np.ndarray, "T e"]
) -> Float[np.ndarray, "S*T d*e"]:
    """Embed pairs (a, b), coded as the symbol a T + b, as Kronecker products of the vectors."""
    return np.kron(first, second)


def concatenated(*tables: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "symbols width"]:
    """Embed tuples of features, one feature per table, as the concatenation of their vectors.

    Tables (S_1, d_1), ..., (S_M, d_M) make one of (S_1 ... S_M, d_1 + ... + d_M). Tuples are coded as by
    `product`: the last feature varies fastest, as in ``np.ravel_multi_index``.
    """

    def beside(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        repeated = np.repeat(first, len(second), axis=0)
        return np.concatenate([repeated, np.tile(second, (len(first), 1))], axis=-1)

    return reduce(beside, tables)
