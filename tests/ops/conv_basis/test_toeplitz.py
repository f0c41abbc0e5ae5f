"""Products with Toeplitz matrices by FFT: equal to those with the dense matrices, with their gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from based_jax import ops
from based_jax.ops.conv_basis.toeplitz import fft_size
from tests.arrays import array, ones
from tests.ops import draw
from tests.ops.conv_basis.conv_basis_cases import dense_conv
from tests.tolerances import BFLOAT16, FLOAT32, assert_close

FFT64 = 1e-13
"""A float64 transform of tens of tokens and back, relative to the largest output: some 1e-16 per level."""

COLUMNS = 3


def dense_toeplitz(diagonals):
    index = np.arange((len(diagonals) + 1) // 2)
    return diagonals[len(index) - 1 + index[:, None] - index]


def dense_circulant(column):
    index = np.arange(len(column))
    return column[(index[:, None] - index) % len(column)]


PRODUCTS = {
    "toeplitz": (lambda a, size, x, t: ops.toeplitz_multiply(a, x, t), lambda a, size: dense_toeplitz(a)),
    "circulant": (lambda a, size, x, t: ops.circulant_multiply(a, x, t), lambda a, size: dense_circulant(a)),
    "conv": (lambda a, size, x, t: ops.conv_multiply(a, x, t), lambda a, size: dense_conv(a)),
    "sub_conv": (ops.sub_conv_multiply, dense_conv),
}
"""the product, as a function of the kernel, the size, x and whether to transpose; and its dense matrix"""


@jax.jit
def everything(kernels, size, x, weights):
    """Each product and its transpose, and the gradients of <weights, product>."""
    results = {}
    for name, (multiply, _) in PRODUCTS.items():
        for transpose in (False, True):

            def loss(kernel, x, multiply=multiply, transpose=transpose):
                y = multiply(kernel, size, x, transpose)
                return (weights * y).sum(), y

            (_, y), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(kernels[name], x)
            results[name, transpose] = y, *gradients
    return results


def expected(kernels, size, x, weights):
    """The same with dense matrices; a product is linear in the kernel, too."""
    results = {}
    for name, (_, dense) in PRODUCTS.items():
        matrix = dense(kernels[name], size)
        units = [dense(unit, size) for unit in np.eye(len(kernels[name]))]
        for transpose in (False, True):
            flip = np.transpose if transpose else np.asarray
            to_kernel = np.array([(weights * (flip(unit) @ x)).sum() for unit in units])
            results[name, transpose] = flip(matrix) @ x, to_kernel, flip(matrix).T @ weights
    return results


def numbers(seed, length):
    rng = np.random.default_rng(seed)
    kernels = {name: rng.normal(size=2 * length - 1 if name == "toeplitz" else length) for name in PRODUCTS}
    return kernels, *rng.normal(size=(2, length, COLUMNS))


@pytest.mark.parametrize("length", [1, 13])
def test_the_dense_product_its_transpose_and_gradients(length):
    """For any number m of columns, in float64."""

    @given(draw.seeds, st.integers(0, length))
    @settings(max_examples=10)
    def law(seed, size):
        kernels, x, weights = numbers(seed, length)
        exact = expected(kernels, size, x, weights)
        with jax.enable_x64(True):
            got = everything(kernels, np.int32(size), x, weights)
            swapped = everything(kernels, np.int32(size), weights, x)
        assert_close(got, exact, FFT64, magnitude=1.0)
        for name in PRODUCTS:  # <w, A x> = <A^T w, x>
            there, back = np.asarray(got[name, False][0]), np.asarray(swapped[name, True][0])
            assert (weights * there).sum() == pytest.approx((back * x).sum(), rel=FFT64, abs=10 * FFT64)

    law()


def test_leading_axes_broadcast():
    """One kernel for each head, other inputs in each row, a size for each of both."""
    rng = np.random.default_rng(1)
    kernel, x, size = rng.normal(size=(3, 7)), rng.normal(size=(2, 1, 7, 2)), np.array([[1, 7, 3], [0, 5, 2]])
    for transpose in (False, True):
        product = functools.partial(ops.sub_conv_multiply, transpose=transpose)
        with jax.enable_x64(True):
            y = jax.jit(product)(kernel, size, x)
        for row, head in np.ndindex(2, 3):
            matrix = dense_conv(kernel[head], size[row, head])
            assert_close(y[row, head], (matrix.T if transpose else matrix) @ x[row, 0], FFT64, magnitude=1.0)


def test_kernels_of_another_length():
    """Entries after the last row have no effect, missing ones are 0."""
    rng = np.random.default_rng(2)
    x, kernel = rng.normal(size=(5, 2)).astype(np.float32), rng.normal(size=9).astype(np.float32)
    product = jax.jit(ops.conv_multiply, static_argnames="transpose")
    assert_close(product(kernel, x), dense_conv(kernel[:5]) @ x, FLOAT32)
    short = dense_conv(np.append(kernel[:2], np.zeros(3)))
    assert_close(product(kernel[:2], x, transpose=True), short.T @ x, FLOAT32)


def test_low_precision():
    kernels, x, _ = numbers(4, 13)
    kernel, x = (array(a, jnp.bfloat16) for a in (kernels["conv"], x))
    y = jax.jit(ops.conv_multiply)(kernel, x)
    assert y.dtype == jnp.bfloat16
    assert_close(y, dense_conv(np.asarray(kernel, np.float64)) @ np.asarray(x, np.float64), BFLOAT16)


def test_transform_sizes():
    for size, expected in [(1, 1), (2, 2), (7, 8), (17, 18), (33, 36), (1000, 1024), (1200, 1280)]:
        assert fft_size(size) == expected


def test_no_transform_is_much_longer_than_needed():
    assert all(size <= fft_size(size) <= 1.25 * size for size in range(1, 3000))


def test_errors_name_the_argument(unchecked):
    for call, error, message in [
        (lambda a, x: ops.conv_multiply(a, x[:, 0]), ValueError, r"x has shape \(5,\): expected \(N, C\)"),
        (lambda a, x: ops.conv_multiply(a.astype(int), x), TypeError, "kernel has dtype int32"),
        (lambda a, x: ops.conv_multiply(a, x.astype(int)), TypeError, "x has dtype int32"),
        (lambda a, x: ops.conv_multiply(a[:0], x), ValueError, r"kernel has shape \(0,\)"),
        (lambda a, x: ops.conv_multiply(None, x), TypeError, "kernel = None: expected an array"),
        (lambda a, x: ops.sub_conv_multiply(a, 6, x), ValueError, "size = 6: expected 0 to N = 5"),
        (lambda a, x: ops.circulant_multiply(a[:4], x), ValueError, r"column.shape\[-1\] = 4: expected N ="),
        (lambda a, x: ops.toeplitz_multiply(a, x), ValueError, r"diagonals.shape\[-1\] = 5: expected 2 N -"),
    ]:
        with pytest.raises(error, match=message):
            call(ones(5), ones((5, 2)))
