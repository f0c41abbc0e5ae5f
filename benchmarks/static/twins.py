"""`twins`: measure the resources that the jax-triton twins need on each family of GPUs.

Compiles them with the block sizes of real calls and prints Markdown; runs nothing. Has the requirements of
`triton_report`.
"""

import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.static import topology, triton_report
from benchmarks.static.compile_offline import Resources
from pallas_kernels import markdown
from pallas_kernels.flags import one_line
from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_attention.layout import symmetric_size
from pallas_kernels.taylor_step import taylor_step

DEVICES = ("NVIDIA A100", "NVIDIA L40S", "NVIDIA H200", "NVIDIA B200")
"""One of each compute capability: 8.0, 8.9 (RTX 4090 too), 9.0 (H100 too), 10.0."""


def gradients(q: jax.Array, k: jax.Array, v: jax.Array, dy: jax.Array) -> Any:
    """Return the outputs of `taylor_attention` and the gradients for `dy`."""
    y, pull_back = jax.vjp(functools.partial(taylor_attention, backend="triton"), q, k, v)
    return y, pull_back(dy)


def attention(
    key_size: int, value_size: int, dtype: str, device_kind: str, batch: int = 4, length: int = 8192
) -> list[Resources]:
    """Compile each kernel of `taylor_attention`, forward and backward, with several blocks of tokens."""
    sizes = (key_size, key_size, value_size, value_size)
    arrays = [jax.ShapeDtypeStruct((batch, length, 16, size), dtype) for size in sizes]
    found = triton_report.report(gradients, *arrays, device_kind=device_kind)
    # The backward pass launches some of the forward pass's again.
    return list({kernel.kernel: kernel for kernel in found}.values())


def step(key_size: int, value_size: int, dtype: str, device_kind: str) -> list[Resources]:
    """Compile the kernel of `taylor_step`, with a float32 state."""
    features = symmetric_size(key_size)
    shapes = [(key_size,), (key_size,), (value_size,), (features, value_size), (features,)]
    dtypes = [dtype] * 3 + ["float32"] * 2
    arrays = [jax.ShapeDtypeStruct((128, 16, *x), d) for x, d in zip(shapes, dtypes, strict=True)]
    function = functools.partial(taylor_step, backend="triton")
    return triton_report.report(function, *arrays, device_kind=device_kind)


def table(key_sizes: Sequence[int]) -> str:
    """Return a row per key size and kernel, a column per GPU: registers / spilled bytes / kB shared."""
    rows = []
    for key_size in key_sizes:
        columns = [_column(key_size, device) for device in DEVICES]
        for kernel in dict.fromkeys(name for column in columns for name in column):
            rows.append([key_size, f"`{kernel}`", *(column.get(kernel, "") for column in columns)])
    return "\n".join(markdown.table(["K", "kernel", *DEVICES], rows, words=range(2 + len(DEVICES))))


def _column(key_size: int, device: str) -> dict[str, str]:
    """Return kernel -> cell, for V = 64 in bfloat16; the message if a compiler refuses."""
    cells = {}
    for name, function in (("attention", attention), ("step", step)):
        try:
            for kernel in function(key_size, 64, "bfloat16", device):
                numbers = kernel.registers, kernel.spill_stores, f"{kernel.shared / 1000:.1f}"
                cells[kernel.kernel] = " / ".join(map(str, numbers))
        except ImportError:
            raise
        except Exception as error:  # compilers raise all kinds; the other cells still count
            cells[name] = one_line(error)
    return cells


@dataclass(frozen=True)
class Twins:
    """Compile the jax-triton twins of the kernels for every family of GPUs and print their resources."""

    key_sizes: tuple[int, ...] = (16,)
    """Channels per head of q and k."""

    def run(self, command: str) -> int:
        """Print the table and the versions that determine it; return 0."""
        topology.use_cpu()
        print(table(self.key_sizes))
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("triton", "jax-triton", "jax")]
        print(f"\nCompiled with {', '.join(versions)}, not run.")
        return 0
