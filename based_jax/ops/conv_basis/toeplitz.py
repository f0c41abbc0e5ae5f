"""Products with Toeplitz, circulant and convolution matrices by FFT, in O(N log N).

    Toeplitz             T_ij = a_{i-j}               for any i and j
    circulant            C_ij = a_{(i-j) mod N}       = F^-1 diag(F a) F with the Fourier matrix F
    convolution          conv(a)_ij = a_{i-j}         for i >= j, otherwise 0
    sub-convolution      conv(a, m)                   conv(a) with all but its last m columns set to 0

The first, third and fourth are corners of a larger circulant (Gu et al. 2024, "Conv-Basis", claims 3.7 and
3.10). An FFT mixes all tokens: zeros above the diagonal are zero only up to rounding, and an inf or NaN
affects the whole product.

The last axis of a kernel and the last axis but one of x have the size N of the matrix; all C columns of x are
multiplied by one matrix. Leading axes broadcast. Products are computed in float32, or float64 if x or the
kernel is, and returned in the dtype of x. An argument of the wrong shape or dtype raises TypeError or
ValueError, which name it.
"""

import jax.numpy as jnp

from based_jax.ops.core.dtypes import accumulation_dtype
from based_jax.ops.core.op import body, op
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_array


@op()
def toeplitz_multiply(
    diagonals: Float[Array, "... _"], x: Float[Array, "... N C"], transpose: bool = False
) -> Float[Array, "... N C"]:
    """Return T x, or T^T x, for the Toeplitz matrix T of these diagonals.

    Args:
        diagonals: (..., 2 N - 1), the diagonal i - j = d at index N - 1 + d: the upper right corner first.
        x: (..., N, C).
        transpose: multiply by the transpose.
    """
    length = _expect("diagonals", diagonals, x)
    wanted = 2 * length - 1
    expected = f"2 N - 1 = {wanted} for x of N = {length} rows"
    expect(diagonals.shape[-1] == wanted, "diagonals.shape[-1]", diagonals.shape[-1], expected)
    size = fft_size(2 * length - 1)
    gap = jnp.zeros((*diagonals.shape[:-1], size - (2 * length - 1)), diagonals.dtype)
    column = jnp.concatenate([diagonals[..., length - 1 :], gap, diagonals[..., : length - 1]], axis=-1)
    return _multiply(column, x, size, transpose)


@op()
def circulant_multiply(
    column: Float[Array, "... N"], x: Float[Array, "... N C"], transpose: bool = False
) -> Float[Array, "... N C"]:
    """Return C x, or C^T x, for the circulant matrix C of this first column.

    The transform has length N, even if N has large prime factors.

    Args:
        column: (..., N).
        x: (..., N, C).
        transpose: multiply by the transpose.
    """
    length = _expect("column", column, x)
    expect(column.shape[-1] == length, "column.shape[-1]", column.shape[-1], f"N = {length}, the rows of x")
    return _multiply(column, x, length, transpose)


@op()
def conv_multiply(
    kernel: Float[Array, "... T"], x: Float[Array, "... N C"], transpose: bool = False
) -> Float[Array, "... N C"]:
    """Return conv(a) x, or conv(a)^T x: the causal convolution of the columns of x with one kernel.

    Args:
        kernel: (..., T), a_0 first. Entries from N on have no effect; missing ones are 0.
        x: (..., N, C).
        transpose: multiply by the transpose, y_j = sum_i a_{i-j} x_i.
    """
    length = _expect("kernel", kernel, x)
    kernel = kernel[..., :length]
    return _multiply(kernel, x, fft_size(length + kernel.shape[-1] - 1), transpose)


@op()
def sub_conv_multiply(
    kernel: Float[Array, "... T"],
    size: int | Int[Array, "..."],
    x: Float[Array, "... N C"],
    transpose: bool = False,
) -> Float[Array, "... N C"]:
    """Return conv(a, m) x, or conv(a, m)^T x: only the last m entries of x's columns are read (written).

    conv(a, m) is conv(a) after a projection, so `size` may be traced: no shape depends on it.

    Args:
        kernel: (..., T), a_0 first. Entries from m on have no effect.
        size: m, from 0 (the product is 0) to N; an array may have the leading axes.
        x: (..., N, C).
        transpose: multiply by the transpose.

    Raises:
        TypeError, ValueError: names an argument of the wrong shape or dtype, or a `size` out of range if it
            is known before compilation.
    """
    length = _expect("kernel", kernel, x)
    if isinstance(size, int):
        expect(0 <= size <= length, "size", size, f"0 to N = {length}")
    inside = (jnp.arange(length) >= length - jnp.asarray(size)[..., None])[..., None]
    if transpose:
        return jnp.where(inside, body(conv_multiply)(kernel, x, transpose), 0)
    return body(conv_multiply)(kernel, jnp.where(inside, x, 0))


def circular_convolution(
    kernel: Float[Array, "... T _"], x: Float[Array, "... N _"], size: int, transpose: bool = False
) -> Float[Array, "... {size} _"]:
    """Convolve each column of x with the kernel's (or its only one), both zero-filled to `size` >= N and T.

    y_i = sum_j a_{(i-j) mod size} x_j,     transposed:  y_j = sum_i a_{(i-j) mod size} x_i
    """
    spectrum = jnp.fft.rfft(kernel, size, axis=-2)
    spectrum = spectrum.conj() if transpose else spectrum
    return jnp.fft.irfft(jnp.fft.rfft(x, size, axis=-2) * spectrum, size, axis=-2)


def fft_size(size: int) -> int:
    """Return the smallest fast length >= size for an FFT: 2^a, 3 2^a, 5 2^a, 9 2^a or 15 2^a."""
    powers = (odd << max(-(-size // odd) - 1, 0).bit_length() for odd in (1, 3, 5, 9, 15))
    return min(powers)


def _multiply(column: Array, x: Array, size: int, transpose: bool) -> Array:
    """Return the first N rows of the product of x, zeros below it, with a circulant of `size`."""
    dtype = jnp.promote_types(accumulation_dtype(column), accumulation_dtype(x))
    y = circular_convolution(column.astype(dtype)[..., None], x.astype(dtype), size, transpose)
    return y[..., : x.shape[-2], :].astype(x.dtype)


def _expect(name: str, kernel: Array, x: Array) -> int:
    """Check both arrays and return N."""
    leading = (None,) * (getattr(x, "ndim", 2) - 2)
    expect_array("x", x, (*leading, "N", "C"), "floating")
    leading = (None,) * (getattr(kernel, "ndim", 1) - 1)
    expect_array(name, kernel, (*leading, "taps"), "floating")
    return x.shape[-2]
