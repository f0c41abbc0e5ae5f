"""Requirements of the Mosaic kernel; checking them does not import it."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import devices, tuning
from pallas_kernels.launch import is_interpreted

RELEASE = (0, 11)
"""Oldest jax: earlier releases lack the interpreter and some of the operations."""

KEY_SIZE = 16
CAPABILITY = "9.0"
"""Hopper: neither older nor newer GPUs have its warpgroup instructions."""


def cannot_run() -> str | None:
    """Return why no Mosaic kernel runs here, or None."""
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < RELEASE:
        return f"needs jax {RELEASE[0]}.{RELEASE[1]} or newer; this is jax {jax.__version__}"
    if is_interpreted():
        return None
    gpu = devices.current()
    if gpu is not None and gpu.capability == CAPABILITY:
        return None
    return f"runs on Hopper GPUs only (compute capability {CAPABILITY}), and this is {gpu or 'no GPU'}"


def supports_mosaic(q: Any = None, k: Any = None, v: Any = None) -> str | None:
    """Return why the Mosaic kernel cannot take these arrays (without arrays: any arrays) here, or None.

    The arrays must be supported by the portable kernels.
    """
    reason = cannot_run()
    if reason is None and q is not None and q.shape[-1] != KEY_SIZE:
        return f"q has {q.shape[-1]} channels; the Mosaic kernel takes {KEY_SIZE}"
    if reason is None and q is not None and jnp.dtype(q.dtype) != jnp.bfloat16:
        return f"q, k, v have dtype {q.dtype}; the Mosaic kernel takes bfloat16"
    return reason


def fastest(q: Any, k: Any, v: Any) -> str:
    """Return "mosaic" where it was measured to be faster than the portable kernels, else "pallas"."""
    if supports_mosaic(q, k, v) is not None:
        return "pallas"
    batch, length, heads, _ = q.shape
    sizes = {"rows_and_heads": batch * heads, "length": length, "value_size": v.shape[-1]}
    return tuning.fastest("taylor_attention", **sizes)
