"""cuDNN's fused softmax attention through `jax.nn.dot_product_attention`, and the calls it supports.

It supports neither segments nor sparse patterns nor log-sums in float32. Padding is on the right, so a causal
query never sees it; bidirectional attention needs the lengths. Gradients are JAX's.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

import pallas_kernels
from based_jax.typing import Array, Bool, Float

IMPLEMENTATION: Any = "cudnn"
"""Passed to `jax.nn.dot_product_attention`; tests pass "xla", which takes the same arguments anywhere."""

MIN_LENGTH = 128
"""Tokens of the shortest call for which None picks a kernel; fewer need one small product."""

DTYPES = ("bfloat16", "float16")

MAX_WIDTH = 128
"""Maximum channels of a head; Hopper supports more in the forward pass, not always in the backward pass."""


def padded_width(width: int) -> int:
    """Return the next multiple of 8, of which cuDNN needs the channels of a head to be."""
    return -(-width // 8) * 8


def supports(q: Any, k: Any, v: Any) -> str | None:
    """Return why cuDNN cannot take these arrays on the default GPU, or None if it can."""
    if pallas_kernels.is_lowered_for_gpu():
        return "is not chosen for an absent GPU, whose cuDNN is unknown"
    dtypes = [x.dtype.name for x in (q, k, v)]
    if dtypes[0] not in DTYPES or len(set(dtypes)) > 1:
        return f"takes one dtype of {' or '.join(DTYPES)}, and q, k, v are {', '.join(dtypes)}"
    width = k.shape[-1]
    if v.shape[-1] != width or width > MAX_WIDTH:
        return (
            f"takes keys and values of one width up to {MAX_WIDTH}, "
            f"and these have {width} and {v.shape[-1]} channels"
        )
    return _refusal(dtypes[0], q.shape, k.shape)


@functools.cache
def _refusal(dtype: str, q: tuple[int, ...], k: tuple[int, ...]) -> str | None:
    """Return JAX's reason to refuse a call; tracing checks cuDNN's version and the device's limits."""
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in (q, k, k)]
    try:
        jax.eval_shape(functools.partial(attend, causal=True), *arrays)
    except (RuntimeError, ValueError) as error:  # NotImplementedError is a RuntimeError
        return f"is refused by jax: {error}"
    return None


def attend(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B M G K"],
    v: Float[Array, "B M G K"],
    *,
    causal: bool = False,
    left: int | None = None,
    scale: float | None = None,
    mask: Bool[Array, "B N"] | None = None,
    visible: Bool[Array, "B N M"] | None = None,
) -> Float[Array, "B N H K"]:
    """Attend within whole rows, arguments as for `softmax_attention`, or to the `visible` keys.

    Heads are padded with zeros, which change neither scores nor the outputs that are kept.
    """
    # Without is_causal a window to the left would see all later keys.
    how: dict[str, Any] = {"is_causal": causal, "implementation": IMPLEMENTATION}
    if left is not None and left < q.shape[1] - 1:
        how["local_window_size"] = (left, 0)  # left keys and the query's own
    if mask is not None and not causal:
        # A row without tokens keeps one: its output is not used but must be finite.
        how["key_value_seq_lengths"] = jnp.maximum(mask.sum(axis=1, dtype=jnp.int32), 1)
    if visible is not None:  # not lengths: the start of a row's segment is known on the device only
        how["mask"] = visible[:, None]
    width = q.shape[-1]
    how["scale"] = width**-0.5 if scale is None else scale
    q, k, v = (pad_channels(x, padded_width(width)) for x in (q, k, v))
    return cast(Array, jax.nn.dot_product_attention(q, k, v, **how))[..., :width]


def pad_channels(x: Float[Array, "B N H K"], width: int) -> Float[Array, "B N H width"]:
    """Pad heads with channels of zeros, up to `width`; wider ones stay as they are."""
    missing = width - x.shape[-1]
    return x if missing <= 0 else jnp.pad(x, [(0, 0), (0, 0), (0, 0), (0, missing)])
