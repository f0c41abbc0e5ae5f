"""Realistic calls of the kernel, for the lowering tests, the compiler's report and tuning."""

import functools
from typing import Any

import jax

from benchmarks.gpu.cases.case import Case
from pallas_kernels.rms_norm import Variant, facts_of, kernel
from pallas_kernels.tuning import choose

KERNELS = {"outputs": kernel.outputs, "gradient": kernel.gradient}

# B, N, D, dtype of the branch, whether it has a bias.
_SIZES = [
    (16, 2048, 1024, "bfloat16", False),  # an MLP of based-360m
    (16, 2048, 1024, "bfloat16", True),  # its gated_conv
    (16, 2048, 1792, "bfloat16", False),  # based-1b
    (3, 100, 4096, "float32", True),  # a last chunk that is not full
]


def cases() -> list[Case]:
    """Return each kernel on each shape, with the variant of the tuning table."""
    return [_case(name, *sizes) for sizes in _SIZES for name in KERNELS]


def candidates(case: Case) -> list[Case]:
    """Return `case` with other block sizes, for tuning."""
    shape = next(sizes for sizes in _SIZES if _name(*sizes) == case.shape)
    return [
        _case(case.kernel, *shape, variant=Variant(tokens, chunk // tokens, warps))
        for tokens in (1, 2, 4, 8)
        for chunk in (8, 16, 32, 64)
        for warps in (2, 4, 8, 16)
        if 4 <= tokens * facts(case)["width"] // (32 * warps) <= 32
    ]


def facts(case: Case) -> dict[str, Any]:
    """Return the facts that select this shape's row of the tuning table."""
    return facts_of(case.arguments[0], case.kernel)


def _name(batch: int, length: int, width: int, dtype: str, has_bias: bool) -> str:
    del batch, length
    return f"D{width} {dtype}{' bias' * has_bias}"


def _case(name: str, *sizes: Any, variant: Variant | None = None) -> Case:
    *shape, dtype, has_bias = sizes
    stream, branch = jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct(shape, dtype)
    scale, marks = (jax.ShapeDtypeStruct(axes, "float32") for axes in (shape[2:], shape[:2]))
    default = choose("rms_norm", Variant, **facts_of(stream, name))
    variant = default if variant is None else variant
    options = {"has_bias": has_bias} if name == "gradient" else {}
    function = functools.partial(KERNELS[name], eps=1e-5, variant=variant, **options)
    addends = [scale] * has_bias + [marks]
    given = {"outputs": (stream, branch, scale, *addends), "gradient": (stream, scale, branch, stream)}
    return Case("rms_norm", name, _name(*sizes), variant, function, given[name], variant == default)
