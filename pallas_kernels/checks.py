"""Checks at the boundary of the kernels: an error names the argument, its value and what was expected."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.devices import cannot_run

FLOATS = ("float32", "bfloat16", "float16")
"""Dtypes that the kernels read; they compute in float32."""

INTEGERS = ("int32", "int64")


def expect(condition: bool, argument: str, value: Any, expected: str) -> None:
    """Raise ``ValueError("argument = value: expected ...")`` unless `condition` holds."""
    if not condition:
        raise ValueError(f"{argument} = {value!r}: expected {expected}")


def expect_array(argument: str, array: Any, shape: Sequence[int], dtypes: Sequence[str] = FLOATS) -> None:
    """Check the shape and dtype of an array whose sizes are determined by other arguments."""
    if not _is_array(array):
        raise TypeError(f"{argument} = {array!r}: expected an array of shape {tuple(shape)}")
    expect(tuple(array.shape) == tuple(shape), f"shape of {argument}", tuple(array.shape), f"{tuple(shape)}")
    expect(jnp.dtype(array.dtype).name in dtypes, f"dtype of {argument}", str(array.dtype), _either(dtypes))


def packing_of(
    starts: jax.Array | None, counts: jax.Array | None, shape: tuple[int, int], first: int
) -> tuple[jax.Array, ...]:
    """Return starts (B, N), by default `first`, and counts (B,), by default N, as int32; () if both are None.

    `shape` is (B, N).
    """
    if starts is None and counts is None:
        return ()
    starts = jnp.full(shape, first, jnp.int32) if starts is None else starts
    counts = jnp.full(shape[:1], shape[1], jnp.int32) if counts is None else counts
    expect_array("starts", starts, shape, INTEGERS)
    expect_array("counts", counts, shape[:1], INTEGERS)
    return starts.astype(jnp.int32), counts.astype(jnp.int32)


def expect_power_of_two(argument: str, size: int, least: int = 1) -> None:
    """Check a block size."""
    expected = "a power of two" + (f" from {least} on" if least > 1 else "")
    expect(size >= least and size & (size - 1) == 0, argument, size, expected)


def unsupported(arrays: dict[str, Any], rank: int, largest: dict[str, int]) -> str | None:
    """Return why a kernel cannot take these arrays of `rank` axes and one of `FLOATS` here, or None.

    `largest` maps arrays to the maximum size of their last axis.
    """
    if reason := cannot_run():
        return reason
    for name, array in arrays.items():
        if not _is_array(array):
            return f"{name} is a {type(array).__name__}; the kernel takes arrays"
        if len(array.shape) != rank:
            return f"{name} has {len(array.shape)} axes; the kernel takes {rank}"
        if 0 in array.shape:
            return f"{name} has shape {tuple(array.shape)}; the kernel takes no empty axis"
        if jnp.dtype(array.dtype).name not in FLOATS:
            return f"{name} has dtype {array.dtype}; the kernel takes {_either(FLOATS)}"
    for name, limit in largest.items():
        if (size := arrays[name].shape[-1]) > limit:
            return f"the last axis of {name} is {size} long; the kernel takes up to {limit}"
    return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _either(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}" if len(names) > 1 else names[0]
