"""A kernel call as data, which tests lower, `inspect` compiles and the section `tune` measures."""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from pallas_kernels.tuning import choose


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
    on_request: bool = False
    """whether a call with this shape runs something else unless it names the kernel"""
    backend: str = "pallas"
    """"mosaic" for kernels that only `inspect` uses: they need a newer jax and have nothing to tune"""
    fill: Mapping[int, int] = field(default_factory=dict)
    """argument -> value of its integers in a measurement; default 0"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """what selects the shape's row of the tuning table"""
    carried: Mapping[int, int] = field(default_factory=dict)
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


def tunable(
    op: str,
    kernel: str,
    shape: str,
    function: Callable[..., Any],
    arguments: Sequence[jax.ShapeDtypeStruct],
    facts: Mapping[str, Any],
    variants: Sequence[Mapping[str, Any]],
    **more: Any,
) -> Case:
    """Return the case with the variant of the tuning table, which can list those of `variants`.

    Args:
        function: takes the arrays, and the keyword `variant`.
        facts: what selects the row of the op's tuning table.
        variants: fields of the op's `Variant` each.
        more: other fields of the case.
    """
    kind = importlib.import_module(f"pallas_kernels.{op}").Variant

    def case(variant: Any, others: Callable[[], Iterable[Case]] = tuple) -> Case:
        given = functools.partial(function, variant=variant), tuple(arguments)
        return Case(op, kernel, shape, variant, *given, facts=facts, others=others, **more)

    return case(choose(op, kind, **facts), lambda: (case(kind(**fields)) for fields in variants))


def grid(fits: Callable[..., bool], **values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the combinations of the values of each field for which `fits` holds."""
    found = (dict(zip(values, each, strict=True)) for each in itertools.product(*values.values()))
    return [fields for fields in found if fits(**fields)]
