"""Convolutions by FFT."""

import jax.numpy as jnp

from based_jax.typing import Array, Float


def circular_convolution(
    kernel: Float[Array, "... T _"], x: Float[Array, "... N _"], size: int
) -> Float[Array, "... {size} _"]:
    """Convolve each column of x with the kernel's (or its only one), both zero-filled to `size` >= N and T.

    y_i = sum_j a_{(i-j) mod size} x_j
    """
    spectrum = jnp.fft.rfft(kernel, size, axis=-2)
    return jnp.fft.irfft(jnp.fft.rfft(x, size, axis=-2) * spectrum, size, axis=-2)


def fft_size(size: int) -> int:
    """Return the smallest fast length >= size for an FFT: 2^a, 3 2^a, 5 2^a, 9 2^a or 15 2^a."""
    powers = (odd << max(-(-size // odd) - 1, 0).bit_length() for odd in (1, 3, 5, 9, 15))
    return min(powers)
