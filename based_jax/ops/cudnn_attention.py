"""cuDNN's fused softmax attention, through `jax.nn.dot_product_attention`: what it takes, and how.

It has no segments, no pattern of its own and no log-sums in float32. Padding is on the right, so a causal
query never sees any of it; bidirectional attention needs the lengths. Gradients are JAX's own.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax.typing import Array, Bool, Float

IMPLEMENTATION: Any = "cudnn"
"""Of `jax.nn.dot_product_attention`; tests name "xla", which takes the same arguments anywhere."""

MIN_LENGTH = 128
"""Tokens of the shortest call that `implementation=None` gives to cuDNN; fewer take one small product."""

DTYPES = ("bfloat16", "float16")

MAX_WIDTH = 128
"""Channels of a head; Hopper takes more forward, not everywhere backward."""


def is_slow(q: Any, k: Any, v: Any) -> bool:
    """Return whether cuDNN should run this call only on request."""
    return q.shape[1] < MIN_LENGTH


def supports(kernel: str, q: Any, k: Any, v: Any) -> str | None:
    """Return why cuDNN cannot take these arrays on the default GPU, or None if it can."""
    if pallas_kernels.is_lowered_for_gpu():
        return "is not chosen for a GPU that is not there, whose cuDNN is unknown"
    dtypes = [x.dtype.name for x in (q, k, v)]
    if dtypes[0] not in DTYPES or len(set(dtypes)) > 1:
        return f"takes one dtype of {' or '.join(DTYPES)}, and q, k, v are {', '.join(dtypes)}"
    width = k.shape[-1]
    if v.shape[-1] != width or width % 8 or width > MAX_WIDTH:
        return (
            f"takes keys and values of one width, a multiple of 8 up to {MAX_WIDTH}, "
            f"and these have {width} and {v.shape[-1]} channels"
        )
    return _refusal(dtypes[0], q.shape, k.shape)


@functools.cache
def _refusal(dtype: str, q: tuple[int, ...], k: tuple[int, ...]) -> str | None:
    """Ask JAX, which looks for cuDNN and its version when it traces; the device's limits are known then."""
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in (q, k, k)]
    try:
        jax.eval_shape(functools.partial(attend, causal=True), *arrays)
    except (RuntimeError, ValueError) as error:  # NotImplementedError is a RuntimeError
        return f"is refused by jax: {error}"
    return None


def attend(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G K"],
    *,
    causal: bool,
    left: int | None = None,
    scale: float | None = None,
    mask: Bool[Array, "B N"] | None = None,
) -> Float[Array, "B N H K"]:
    """Whole rows, each by itself; arguments as `softmax_attention`."""
    # Without is_causal a window to the left would see all later keys.
    how: dict[str, Any] = {"scale": scale, "is_causal": causal}
    if left is not None and left < q.shape[1] - 1:
        how["local_window_size"] = (left, 0)  # left keys and the query's own
    if mask is not None and not causal:
        # A row without a token keeps one: nothing is read of it, but it must be finite.
        how["key_value_seq_lengths"] = jnp.maximum(mask.sum(axis=1, dtype=jnp.int32), 1)
    return cast(Array, jax.nn.dot_product_attention(q, k, v, implementation=IMPLEMENTATION, **how))


def attend_one(
    q: Float[Array, "B 1 H K"],
    k: Float[Array, "B W G K"],
    v: Float[Array, "B W G K"],
    visible: Bool[Array, "B 1 W"],
    scale: float | None = None,
) -> Float[Array, "B 1 H K"]:
    """One query per row on the keys that it may see, in any order.

    Where a row's segment begins is known on the device only, so lengths would not do.
    """
    return jax.nn.dot_product_attention(
        q, k, v, mask=visible[:, None], scale=scale, implementation=IMPLEMENTATION
    )
