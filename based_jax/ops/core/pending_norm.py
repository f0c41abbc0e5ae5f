"""The norm of a single row that waits for the products which read it: they compute it in their launch."""

import functools
from collections.abc import Callable
from typing import Any

import pallas_kernels
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.typing import Array, Bool, Float


class PendingNorm:
    """y of `ops.norm.add_rms_norm` for one row (1, 1, D), where the kernels of `products` may compute it.

    Attributes:
        shape, dtype: those of y.
        stream: the sum, (1, 1, D), NaN if it is not a number; known as soon as y was read.
        are_numbers: whether its sum of squares is finite, (1, 1); as `stream`.
    """

    stream: Float[Array, "1 1 D"]
    are_numbers: Bool[Array, "1 1"]

    def __init__(self, *arrays: Array | None, eps: float) -> None:
        """Take the arrays of `add_rms_norm`: stream, branch, scale, broken or None, bias or None."""
        self._arrays: Any = arrays
        self._eps = eps
        self.shape, self.dtype = self._arrays[1].shape, self._arrays[1].dtype

    def products(self, kernel: Callable[..., Any], *matrices: Array, **options: Any) -> list[Array]:
        """Return the results of `pallas_kernels.row_products` or `gated_row_product` for y."""
        stream, branch, scale, broken, bias = self._arrays
        norm = pallas_kernels.SumNorm(stream.reshape(-1), scale, broken, bias, self._eps)
        *found, stream, is_number = kernel(branch.reshape(-1), *matrices, norm=norm, **options)
        self.stream, self.are_numbers = stream.reshape(self.shape), is_number.reshape(self.shape[:-1])
        return found

    def astype(self, dtype: Any) -> Any:
        """Return y in this dtype: itself if it has it."""
        return self if self.dtype == dtype else self.array.astype(dtype)

    @functools.cached_property
    def array(self) -> Float[Array, "1 1 D"]:
        """y, by a kernel of its own."""
        stream, y, self.are_numbers = pallas_kernels.add_rms_norm(*self._arrays, eps=self._eps)
        self.stream = nan_unless(self.are_numbers[..., None], stream)
        return y
