"""Realistic calls of the kernels, for the lowering tests, the compiler's report and tuning."""

import dataclasses
import functools
from dataclasses import dataclass

import jax

from benchmarks.gpu.cases.case import Case
from pallas_kernels.gated_conv import Variant, facts_of, kernel, tuned
from pallas_kernels.gated_conv.kernel import Call

KERNELS = {"outputs": kernel.outputs, "gradients": kernel.gradients}


@dataclass(frozen=True)
class Shape:
    """One call."""

    channels: int
    taps: int
    has_bias: bool
    dtype: str
    batch: int = 16
    length: int = 2048

    def __str__(self) -> str:
        return f"E{self.channels} T{self.taps} {self.dtype}{' bias' * self.has_bias}"


SHAPES = (
    Shape(2048, 3, True, "bfloat16"),  # gated_conv of based-360m
    Shape(2048, 0, False, "bfloat16"),  # its MLP
    Shape(2816, 0, False, "bfloat16"),  # the MLP of attn-360m
    Shape(1000, 4, False, "float32", length=500),  # last blocks that are not full
)


def cases() -> list[Case]:
    """Return each kernel on each shape, with the variant of the tuning table."""
    return [_case(name, shape) for shape in SHAPES for name in KERNELS]


def candidates(case: Case) -> list[Case]:
    """Return `case` with other block sizes, for tuning."""
    shape = next(shape for shape in SHAPES if str(shape) == case.shape)
    return [
        _case(case.kernel, shape, Variant(channels, tokens, chunk // tokens, warps))
        for channels, warps in ((128, 1), (128, 2), (256, 1), (256, 2), (512, 2), (512, 4), (2048, 8))
        for tokens in (1, 2, 4, 8)
        for chunk in ((32, 64, 128) if shape.taps else (8, 32, 64))
    ]


def facts(case: Case) -> dict[str, int | str]:
    """Return the facts that select this shape's row of the tuning table."""
    return facts_of(case.function.keywords["call"], case.kernel)


def _case(name: str, shape: Shape, variant: Variant | None = None) -> Case:
    array = functools.partial(jax.ShapeDtypeStruct, dtype=shape.dtype)
    open_call = Call("silu", 0, shape.taps, shape.has_bias, None)
    call = tuned(dataclasses.replace(open_call, variant=variant), name)
    arguments = [array((shape.batch, shape.length, 2, shape.channels))]
    arguments += [array((shape.batch, shape.length, shape.channels))] * (name == "gradients")
    arguments += [array((shape.taps, shape.channels))] * (shape.taps > 0)
    arguments += [array((2, shape.channels))] * shape.has_bias
    function = functools.partial(KERNELS[name], call=call)
    is_default = call == tuned(open_call, name)
    return Case("gated_conv", name, str(shape), call.variant, function, tuple(arguments), is_default)
