"""Run the launches of jax-triton in Triton's own interpreter: the twins' numbers without a GPU.

It reads memory through torch tensors, needs ``TRITON_INTERPRET=1`` before `triton` is imported (hence a
process of its own), and knows no bfloat16 matmuls: Triton 3.6 returns inf for them.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from pallas_kernels import triton_launch

_ONE_AT_A_TIME = threading.Lock()  # the interpreter patches Triton's modules while a kernel runs


@contextlib.contextmanager
def interpreted_triton() -> Iterator[None]:
    """Kernels of the "triton" backend that are traced inside run in the interpreter, on any platform."""
    with (
        mock.patch.object(triton_launch, "launch", _launch),
        mock.patch.object(triton_launch, "require"),  # jax_triton insists on a GPU plugin
    ):
        yield


def _launch(
    kernel: Any,
    *operands: Any,
    grid: Any,
    out_shape: Any,
    aliases: Any = None,
    name: str,
    warps: int,
    stages: int = 1,
    **constants: Any,
) -> tuple[Any, ...]:
    """As `triton_launch.launch`; elements that no program writes are NaN, as in Pallas' interpreter."""
    import torch

    def run(*arrays: Any) -> tuple[np.ndarray, ...]:
        inputs = [torch.from_numpy(np.array(x)) for x in arrays]
        outputs = [torch.from_numpy(np.full(x.shape, np.nan, x.dtype)) for x in out_shape]
        for i, o in (aliases or {}).items():
            outputs[o] = inputs[i]
        with _ONE_AT_A_TIME:
            kernel[tuple(grid)](*inputs, *outputs, **constants)
        return tuple(x.numpy() for x in outputs)

    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out_shape)
    return tuple(jax.pure_callback(run, shapes, *operands))
