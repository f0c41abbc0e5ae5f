"""Realistic calls of the kernels; see `catalog`."""

import functools

import jax
from jax.experimental import pallas as pl

from benchmarks.gpu.cases.case import Case, tunable
from pallas_kernels.rms_norm import Variant, facts_of, kernel
from pallas_kernels.tuning import choose

KERNELS = {"outputs": kernel.outputs, "gradient": kernel.gradient}

# (B, N, D), dtype of the branch, whether it has a bias.
_SIZES = [
    ((16, 2048, 1024), "bfloat16", False),  # an MLP of based-360m
    ((16, 2048, 1024), "bfloat16", True),  # its gated_conv
    ((16, 2048, 1792), "bfloat16", False),  # based-1b
    ((3, 100, 4096), "float32", True),  # a last chunk that is not full
]


def cases() -> list[Case]:
    """Return each kernel on each shape, with the variant of the tuning table."""
    found = []
    for shape, *rest in _SIZES:
        width = pl.next_power_of_2(shape[-1])
        variants = [
            Variant(tokens, chunk // tokens, warps)
            for tokens in (1, 2, 4, 8)
            for chunk in (8, 16, 32, 64)
            for warps in (2, 4, 8, 16)
            if 4 <= tokens * width // (32 * warps) <= 32
        ]
        found += [tunable(_case, name, shape, *rest, variants=variants) for name in KERNELS]
    return found


def _case(
    name: str, shape: tuple[int, ...], dtype: str, has_bias: bool, variant: Variant | None = None
) -> Case:
    stream, branch = jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct(shape, dtype)
    scale, marks = (jax.ShapeDtypeStruct(axes, "float32") for axes in (shape[2:], shape[:2]))
    facts = facts_of(stream, name)
    default = choose("rms_norm", Variant, **facts)
    variant = default if variant is None else variant
    options = {"has_bias": has_bias} if name == "gradient" else {}
    function = functools.partial(KERNELS[name], eps=1e-5, variant=variant, **options)
    outputs = (stream, branch, *[scale] * (1 + has_bias), marks)
    arguments = outputs if name == "outputs" else (stream, scale, branch, stream)
    words = f"D{shape[2]} {dtype}{' bias' * has_bias}"
    return Case("rms_norm", name, words, variant, function, arguments, variant == default, facts=facts)
