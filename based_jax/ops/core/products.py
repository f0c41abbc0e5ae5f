"""Products of activations with weights."""

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax.ops.core import platforms, sharding
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.core.nan_isolation import nan_unless
from based_jax.typing import Array, Bool, Float

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
}
"""Activations of a gate or an MLP, by name; "gelu" is exact, "gelu_tanh" its approximation."""


_IN_LOOP: Any = jax.make_user_context(False)
"""part of the key of `jit`'s cache of traced programs"""


@contextlib.contextmanager
def in_loop_over_tokens() -> Generator[None]:
    """Trace the body of a loop over tokens: kernels may multiply single rows there.

    They read weights by their results, (V, K). XLA transposes the weights once, before the loop, which would
    take longer than the products of one token.
    """
    with _IN_LOOP(True):
        yield


class PendingNorm:
    """y of `ops.norm.add_rms_norm` for one row (1, 1, D), computed by the products that read it.

    Attributes:
        shape, dtype: those of y.
        stream: the sum, (1, 1, D), NaN if it is not a number; known as soon as y was read.
        are_numbers: whether its sum of squares is finite, (1, 1); as `stream`.
    """

    stream: Float[Array, "1 1 D"]
    are_numbers: Bool[Array, "1 1"]

    def __init__(self, *arrays: Array | None, eps: float) -> None:
        """Take the arrays of `add_rms_norm`: stream or None, branch, scale, broken or None, bias or None."""
        self._arrays: Any = arrays
        self._eps = eps
        self.shape, self.dtype = self._arrays[1].shape, self._arrays[1].dtype

    def products(self, kernel: Callable[..., Any], *matrices: Array, **options: Any) -> list[Array]:
        """Return the results of `pallas_kernels.row_products` or another product of a row, for y."""
        stream, branch, scale, broken, bias = self._arrays
        flat = None if stream is None else stream.reshape(-1)
        norm = pallas_kernels.SumNorm(flat, scale, broken, bias, self._eps)
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


def product(
    x: Float[Array, "... K"] | PendingNorm,
    weights: Float[Array, "K V"],
    bias: Float[Array, " V"] | None = None,
) -> Float[Array, "... V"]:
    """Return x @ weights + bias; on a GPU a single 16-bit row, as in decoding, by a kernel or as two rows.

    XLA compiles a product with a vector to a sum of elementwise products. On a GPU it rounds these to 16 bits
    before adding them, and often stores them all, three times the memory traffic of the weights.
    """
    biases = () if bias is None else (bias.astype(x.dtype),)
    if is_alone() and (found := row_products(x, weights, biases=biases)) is not None:
        return found[0]
    y = _product(x.array if isinstance(x, PendingNorm) else x, weights)
    return y if bias is None else plus_bias(y, bias)


def _product(x: Float[Array, "... K"], weights: Float[Array, "K V"]) -> Float[Array, "... V"]:
    if x.ndim > 2 and is_on_one("cpu", x):
        # With its rows in one axis XLA's CPU compiler multiplies in place; the gradient of the weights, a sum
        # over several axes, would have it transpose both factors first. A training step of attn-tiny (8 x 256
        # bytes, 2 cores, jax 0.12) takes 14 % less time.
        return (x.reshape(-1, x.shape[-1]) @ weights).reshape(*x.shape[:-1], -1)
    if x.dtype.itemsize != 2 or not is_row_on_gpu(x):
        return x @ weights
    two = jnp.broadcast_to(x.reshape(1, -1), (2, x.shape[-1])) @ weights
    return two[0].reshape(*x.shape[:-1], -1)


def row_products(
    x: Float[Array, "... K"] | PendingNorm,
    *weights: Float[Array, "K V"],
    biases: Sequence[Float[Array, " V"]] = (),
) -> tuple[Array, ...] | None:
    """Return x @ each of `weights`, plus its bias, in one launch, or None; see `launched`."""
    found = launched(pallas_kernels.row_products, x, *(matrix.T for matrix in weights), biases=biases)
    return None if found is None else tuple(y.reshape(*x.shape[:-1], -1) for y in found)


def gated_product(
    x: Float[Array, "... K"] | PendingNorm, weights: Float[Array, "K columns"], activation: str
) -> Float[Array, "... F"]:
    """Return (x @ first half) * activation(x @ second half); in one launch where `row_products` is.

    Args:
        weights: (K, 2 F): the columns of values, then those of the gate.
    """
    halves, kernel = weights.T.reshape(2, -1, len(weights)), pallas_kernels.gated_row_product
    if activation in pallas_kernels.GATES and (y := launched(kernel, x, halves, gate=activation)):
        return y[0].reshape(*x.shape[:-1], -1)
    inner = product(x, weights).reshape(*x.shape[:-1], 2, -1)
    if (y := fused_gate(inner, activation=activation, activated=1)) is not None:
        return y
    return inner[..., 0, :] * ACTIVATIONS[activation](inner[..., 1, :])


def fused_gate(
    inner: Float[Array, "... 2 F"],
    taps: Float[Array, "T F"] | None = None,
    bias: Float[Array, "2 F"] | None = None,
    *,
    activation: str = "silu",
    activated: int = 0,
) -> Float[Array, "... F"] | None:
    """Return activation(conv(one half)) * other half of `inner` + bias, or None without a kernel for it.

    The kernel and that of its gradient read every array once. XLA's gradient of a gate reads its inputs once
    for each half, and that of a short convolution stores the gradient of its outputs.
    """
    if inner.ndim != 4 or inner.shape[1] == 1 or not runs_kernels(inner):
        return None
    if pallas_kernels.supports_gated_conv(inner, taps, activation) is not None:
        return None
    return pallas_kernels.gated_conv(inner, taps, bias, activation=activation, activated=activated)


def plus_bias(x: Float[Array, "... D"], bias: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Return x + bias, over its last axes and in its dtype; the bias's gradient is summed in float32."""
    wide = accumulation_dtype(x)
    return (x.astype(wide) + bias.astype(x.dtype).astype(wide)).astype(x.dtype)


def is_on_one(platform: str, x: Array) -> bool:
    """Return whether x is on this platform, and no mesh is known over which it might be sharded."""
    return platforms.platform_of([x]) == platform and not sharding.is_active()


def is_row_on_gpu(x: Float[Array, "... K"]) -> bool:
    """Return whether x is one row, as in decoding one text, on a GPU."""
    return math.prod(x.shape[:-1]) == 1 and platforms.platform_of([x]) == "gpu"


def runs_kernels(x: Array) -> bool:
    """Return whether kernels run where x is: on one GPU, or in the interpreter."""
    is_on_gpu = pallas_kernels.is_interpreted() or platforms.platform_of([x]) == "gpu"
    return is_on_gpu and not sharding.is_active()


def reads_pending_norms(x: Array) -> bool:
    """Return whether the products of x, in a loop over tokens, may compute the norm that x is."""
    return is_alone() and _takes_kernel(x)


def is_alone() -> bool:
    """Return whether kernels may read any weights: they gather those whose rows are sharded over devices."""
    return jax.device_count() == 1 or pallas_kernels.is_interpreted()


def launched(kernel: Callable[..., Any], x: Any, *matrices: Array, **options: Any) -> Sequence[Array] | None:
    """Return the results of a kernel for a row's products with matrices, such as (V, K), or None.

    None unless x is one 16-bit row in a loop over tokens, on a GPU that runs the kernel and on which it was
    measured to be faster than XLA.
    """
    if not _takes_kernel(x, *matrices):
        return None
    if isinstance(x, PendingNorm):
        return x.products(kernel, *matrices, **options)
    return kernel(x.reshape(-1), *matrices, **options)


def _takes_kernel(x: Any, *weights: Any) -> bool:
    is_row = _IN_LOOP.value and math.prod(x.shape[:-1]) == 1 and x.dtype.itemsize == 2
    if not (is_row and runs_kernels(x) and pallas_kernels.was_faster("row_products")):
        return False
    return pallas_kernels.supports_row_products(jax.ShapeDtypeStruct(x.shape[-1:], x.dtype), *weights) is None
