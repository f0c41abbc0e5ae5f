"""A kernel call as data, which tests lower, `inspect` compiles and the section `tune` measures."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """what selects the shape's row of the tuning table"""
    carried: Mapping[int, int] = field(default_factory=dict, hash=False)
    """argument -> the result that replaces it in the next call, in place"""
    others: Callable[[], Iterable["Case"]] = tuple
    """lists the variants worth measuring on this shape"""

    @property
    def name(self) -> str:
        """Name of the case in reports and test ids."""
        return f"{self.op}/{self.kernel} {self.shape} {self.variant}"

    def candidates(self) -> list["Case"]:
        """Return the kernel and shape with each variant worth measuring; the case itself first."""
        return [self, *(other for other in self.others() if other.variant != self.variant)]


def tunable(make: Callable[..., Case], *shape: Any, variants: Iterable[Any]) -> Case:
    """Return `make(*shape)`, the case with the variant in use, which can list those with `variants`."""
    return replace(make(*shape), others=lambda: (make(*shape, variant=variant) for variant in variants))
