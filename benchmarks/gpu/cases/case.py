"""A kernel call as data, which tests lower, `inspect` compiles and `tune` measures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax


@dataclass(frozen=True)
class Case:
    """One variant of one kernel on one realistic shape."""

    op: str
    """folder of `pallas_kernels`"""
    kernel: str
    """name of one of the op's kernels, such as "outputs" """
    shape: str
    """the sizes in words, such as "K16 V64 bfloat16" """
    variant: Any
    """frozen dataclass of block sizes; has `warps` and `stages`"""
    function: Callable[..., Any]
    """maps arrays to the kernel's results"""
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    default: bool = True
    """the variant that a call with this shape gets from the tuning table"""
    on_request: bool = False
    """whether a call with this shape runs something else unless it names the kernel"""
    backend: str = "pallas"
    """"mosaic" for kernels that only `inspect` uses: they need a newer jax and have nothing to tune"""
    fill: Mapping[int, int] = field(default_factory=dict, hash=False)
    """argument -> value of its integers in a measurement; default 0"""

    @property
    def name(self) -> str:
        """Name of the case in reports and test ids."""
        return f"{self.op}/{self.kernel} {self.shape} {self.variant}"
