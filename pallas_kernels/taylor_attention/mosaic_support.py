"""What the Mosaic kernel runs on and takes; asking does not import it."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import tuning
from pallas_kernels.launch import is_interpreted

RELEASE = (0, 11)
"""Of jax: before, neither the interpreter nor all of the operations are there."""

KEY_SIZE = 16
CAPABILITY = "9.0"
"""Of Hopper: instructions of whole warpgroups, which neither older nor newer GPUs have."""

HOPPERS = ("H100", "H200", "H800", "H20", "GH200")
"""Parts of the names of such GPUs, for those that are only compiled for."""


def cannot_run() -> str | None:
    """Why no Mosaic kernel runs here, or None."""
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < RELEASE:
        return f"needs jax {RELEASE[0]}.{RELEASE[1]} or newer; this is jax {jax.__version__}"
    if is_interpreted():
        return None
    device: Any = jax.sharding.get_abstract_mesh().abstract_device  # what is compiled for without being there
    if device is None:
        device = jax.devices()[0]
    found = getattr(device, "compute_capability", None)
    if found == CAPABILITY or (found is None and any(name in device.device_kind for name in HOPPERS)):
        return None
    what = device.device_kind if found is None else f"{device.device_kind}, compute capability {found}"
    return f"runs on Hopper GPUs only (compute capability {CAPABILITY}), and this is {what}"


def supports_mosaic(q: Any = None, k: Any = None, v: Any = None) -> str | None:
    """Why the Mosaic kernel cannot take these arrays here, or None; without arrays, why it runs nowhere here.

    The arrays are such that the portable kernels take them.
    """
    return cannot_run() or (None if q is None else unsupported(q, k, v))


def fastest(q: Any, k: Any, v: Any) -> str:
    """ "mosaic" where it was measured to be faster than the portable kernels, else "pallas"."""
    if supports_mosaic(q, k, v) is not None:
        return "pallas"
    batch, length, heads, _ = q.shape
    return tuning.fastest(
        "taylor_attention", rows_and_heads=batch * heads, length=length, value_size=v.shape[-1]
    )


def unsupported(q: Any, k: Any, v: Any) -> str | None:
    """Why the Mosaic kernel cannot take these arrays, which the portable kernels take, or None."""
    if q.shape[-1] != KEY_SIZE:
        return f"q has {q.shape[-1]} channels; the Mosaic kernel takes {KEY_SIZE}"
    if jnp.dtype(q.dtype) != jnp.bfloat16:
        return f"q, k, v have dtype {q.dtype}; the Mosaic kernel takes bfloat16"
    return None
